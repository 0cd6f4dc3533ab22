"""Losses of a Redis group by numbers, and Redis 6.2, which does not count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis import exceptions

from outrider.brokers.redis.connection import Command
from outrider.brokers.redis.losses import Losses, count_trimmed
from outrider.brokers.redis.readers import Group

STREAM = {b"entries-added": 100, b"length": 30, b"recorded-first-entry-id": b"70-0"}
GROUP = {b"entries-read": 60, b"last-delivered-id": b"59-0"}


def test_what_was_added_and_is_neither_there_nor_read_is_lost() -> None:
    assert count_trimmed(STREAM, GROUP) == 10


def test_ids_compare_as_numbers() -> None:
    reached = {**GROUP, b"last-delivered-id": b"700-12"}

    assert count_trimmed({**STREAM, b"recorded-first-entry-id": b"700-9"}, reached) == 0


def test_server_that_does_not_count_reports_no_loss() -> None:
    assert count_trimmed({b"length": 30}, {b"last-delivered-id": b"59-0"}) == 0
    assert count_trimmed(STREAM, {**GROUP, b"entries-read": None}) == 0


def test_neighbouring_losses_of_one_kind_are_told_as_one() -> None:
    losses = Losses()

    losses.deleted([b"1-0", b"2-0"])
    losses.deleted([b"3-0"])
    losses.trimmed(b"3-0", b"9-0", 5)

    told = losses.take()
    assert [(loss.first, loss.last, loss.count) for loss in told] == [
        ("1-0", "3-0", 3),
        ("(3-0", "(9-0", 5),
    ]
    assert losses.take() == []


class OldServer:
    """Answers as Redis 6.2 does."""

    def __init__(self) -> None:
        self.created: list[Command] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[OldServer]:
        yield self

    async def ask(self, command: Command) -> list[Any]:
        if command[0] == "XINFO":
            return [[b"length", 3, b"last-generated-id", b"9-0"]]
        if "ENTRIESREAD" in command:
            return [exceptions.ResponseError("Unknown subcommand or wrong number of arguments")]
        self.created.append(command)
        return [b"OK"]

    def checked(self, replies: list[Any]) -> list[Any]:
        return replies


async def test_group_is_created_on_a_server_that_does_not_count() -> None:
    server = OldServer()

    await Group(server, "events", "billing").create()  # type: ignore[arg-type]

    assert server.created == [("XGROUP", "CREATE", "events", "billing", "0", "MKSTREAM")]
