"""Fair shares and floors: the arithmetic that relays agree on."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import DomainEvent
from outrider.lanes import (
    LANES,
    LANES_FREE,
    aggregate_key,
    decode_lanes,
    encode_lanes,
    fair_share,
    surplus,
)
from outrider.outcomes import ClaimedEvent
from outrider.store.postgres.scan_start import ScanStart


@given(st.sets(st.uuids(), min_size=1, max_size=100))
def test_shares_add_up_to_all_lanes_and_differ_by_one_at_most(relays: set[UUID]) -> None:
    shares = [fair_share(relay, list(relays)) for relay in relays]

    assert sum(shares) == LANES
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("lanes", [{3}, {0, 63}, set(range(8))])
def test_wake_up_names_few_lanes(lanes: set[int]) -> None:
    assert decode_lanes(encode_lanes(lanes)) == lanes


@pytest.mark.parametrize("word", [encode_lanes(range(9)), LANES_FREE, "", "1,x", "²", "1" * 9999])
def test_wake_up_of_many_or_strange_words_may_be_any_lane(word: str) -> None:
    assert decode_lanes(word) is None


def test_surplus_leaves_the_share() -> None:
    assert surplus({5, 1, 9}, 2) == [9]
    assert surplus({5}, 2) == []


@given(st.text(min_size=1), st.text(min_size=1))
def test_aggregate_key_fits_a_bigint_and_gives_a_lane(kind: str, number: str) -> None:
    kind, number = (t.encode("utf-8", "replace").decode() for t in (kind, number))
    key = aggregate_key("default", kind, number)

    assert -(2**63) <= key < 2**63
    assert 0 <= key % LANES < LANES


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def claimed(position: int, lane: int = 1) -> ClaimedEvent:
    envelope = DomainEvent("a.b", "a", 1, {}).to_envelope()
    return ClaimedEvent(position, lane, envelope, datetime.now(UTC), 0, 0, None, 9)


def test_floor_follows_what_was_settled_half_a_second_ago() -> None:
    clock = Clock()
    floors = ScanStart(clock)
    floors.lease({1: 7})

    assert floors.for_claim([1]) == [0]
    floors.settled([claimed(10)], [])
    assert floors.for_claim([1]) == [0]
    clock.now += 0.6
    floors.for_claim([1])
    clock.now += 0.6
    assert floors.for_claim([1]) == [11]


def test_floor_never_passes_what_is_left_and_is_forgotten_with_the_lease() -> None:
    clock = Clock()
    floors = ScanStart(clock)
    floors.lease({1: 7})
    floors.for_claim([1])
    floors.settled([claimed(10), claimed(12)], [claimed(11)])
    for _ in range(2):
        clock.now += 0.6
        floors.for_claim([1])
    assert floors.for_claim([1])[0] <= 11

    floors.lease({1: 8})
    clock.now += 5
    assert floors.for_claim([1]) == [0]


def test_there_is_no_floor_while_looking_from_the_beginning_is_quick() -> None:
    clock = Clock()
    floors = ScanStart(clock, quick=0.002)
    floors.lease({1: 7})
    for took in (0.1, 0.1, 0.001):
        floors.scanned(floors.for_claim([1]), rows=1, seconds=took)
        floors.settled([claimed(10)], [])
        clock.now += 0.6
    assert floors.for_claim([1]) == [11]

    clock.now += 2
    floors.scanned(floors.for_claim([1]), rows=1, seconds=0.001)
    assert floors.for_claim([1]) == [0]

    floors.scanned([0], rows=1, seconds=0.1)
    assert floors.for_claim([1]) == [11]


def test_every_two_seconds_a_lane_is_looked_at_from_the_beginning() -> None:
    clock = Clock()
    floors = ScanStart(clock)
    floors.lease({1: 7})
    seen = []
    for _ in range(60):
        floors.settled([claimed(1000)], [])
        seen.append(floors.for_claim([1])[0])
        clock.now += 0.1

    assert 1001 in seen
    assert seen.count(0) >= 3
    assert 0 in seen[20:]


def test_what_was_sent_back_lowers_the_floor_until_it_is_settled() -> None:
    clock = Clock()
    floors = ScanStart(clock)
    floors.lease({1: 7})
    floors.for_claim([1])
    floors.settled([claimed(1000)], [])
    for _ in range(2):
        clock.now += 0.6
        floors.for_claim([1])
    assert floors.for_claim([1]) == [1001]

    floors.found({1: 40})
    assert floors.for_claim([1]) == [40]
    floors.settled([claimed(40)], [])
    clock.now += 0.6
    assert floors.for_claim([1])[0] <= 41
