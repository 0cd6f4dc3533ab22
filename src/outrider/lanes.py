"""Lanes: every aggregate belongs to one of 64, and a relay leases lanes, not rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

LANES: Final = 64
LEAST_PER_LANE: Final = 16
"""A claim returns at least this many events of one lane, if there are so many."""
LANES_FREE: Final = "lanes"
"""NOTIFY payload of a relay that has released lanes."""
_MAX_LANES_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class LaneLease:
    """Lanes with the fencing tokens under which they were leased."""

    lanes: Mapping[int, int]
    orphaned: frozenset[int] = frozenset()
    """Lanes just taken over from an owner that died."""
    surplus: frozenset[int] = frozenset()
    """Lanes to release, once nothing of theirs is in flight, for relays that have too few."""


@lru_cache(maxsize=4096)
def aggregate_key(sink: str, aggregate_type: str, aggregate_id: str) -> int:
    """A stable hash of one aggregate at one sink; its lane is this number modulo LANES.

    Two aggregates with the same hash sometimes wait for each other; nothing worse happens.
    """
    name = f"{sink}\0{aggregate_type}\0{aggregate_id}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big", signed=True)


def fair_share(relay: UUID, live: Sequence[UUID]) -> int:
    """How many lanes this relay should have; the shares of all live relays add up to LANES."""
    ranked = sorted({*live, relay})
    base, rest = divmod(LANES, len(ranked))
    return base + (ranked.index(relay) < rest)


def surplus(lanes: Collection[int], share: int) -> list[int]:
    """The lanes to release so that `share` are left."""
    return sorted(lanes)[share:]


def encode_lanes(lanes: Collection[int]) -> str:
    """NOTIFY payload naming these lanes; empty if there are more than eight."""
    return ",".join(map(str, lanes)) if len(lanes) <= _MAX_LANES_NAMED else ""


def decode_lanes(payload: str) -> frozenset[int] | None:
    """The lanes that a NOTIFY payload names, None if any lane may have work.

    It is only a hint: anybody may send a notification.
    """
    numbers = payload.split(",")
    if len(numbers) <= _MAX_LANES_NAMED and all(n.isdecimal() and len(n) < 6 for n in numbers):
        return frozenset(map(int, numbers))
    return None
