"""Positions of Kafka: what a commit says, and where a source resumes from it."""

from __future__ import annotations

import pytest

from outrider.brokers.kafka.positions import Position, Range, resume

FOUND = Range(place="shop/0", beginning=10, end=100, topic_id="new")


def test_position_survives_its_way_through_the_metadata_of_a_commit() -> None:
    position = Position(
        offset=12, owner="me", topic_id="old", crashes={12: 2, 15: 1}, end=18, first_innocent=20
    )

    assert Position.parse(12, position.metadata) == position


def test_released_partition_names_no_owner() -> None:
    assert Position.parse(12, Position(offset=12).metadata).owner == ""


@pytest.mark.parametrize(
    "metadata", ["", "NONE", "7", "[]", '{"crashes": 3}', '{"crashes": {"a": 1}}', '{"crashes": [']
)
def test_metadata_of_somebody_else_is_that_of_a_process_that_died(metadata: str) -> None:
    found = Position.parse(12, metadata)

    assert (found.offset, found.owner, found.crashes) == (12, "unknown", {})


@pytest.mark.parametrize("offset", [10, 50, 100])
def test_offset_that_is_there_is_resumed_without_a_loss(offset: int) -> None:
    for topic_id in ("", "new"):
        assert resume(Position(offset=offset, topic_id=topic_id), FOUND) == (offset, None)


def test_records_that_expired_are_told_with_range_and_count() -> None:
    start, loss = resume(Position(offset=3, topic_id="new"), FOUND)

    assert start == 10
    assert loss is not None
    assert (loss.first, loss.last, loss.count) == ("shop/0/3", "shop/0/9", 7)
    assert "retention" in loss.reason


def test_topic_that_was_created_again_and_grew_is_read_from_its_beginning() -> None:
    start, loss = resume(Position(offset=50, topic_id="old"), FOUND)

    assert start == 10
    assert loss is not None
    assert (loss.first, loss.count) == ("shop/0/50", None)
    assert "created again" in loss.reason


def test_partition_that_ends_before_the_position_is_read_from_its_beginning() -> None:
    start, loss = resume(Position(offset=101, topic_id=""), FOUND)

    assert start == 10
    assert loss is not None
    assert loss.count is None
