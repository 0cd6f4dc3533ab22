"""The source: receives the entries of one consumer group."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from outrider.brokers.redis.config import RedisConfig
from outrider.brokers.redis.connection import ConnectionPool
from outrider.brokers.redis.dead_letters import DeadLetters
from outrider.brokers.redis.readers import Group, OrderedReader, Reader, SharedReader
from outrider.errors import BrokerUnavailable, ConfigurationError, LeaseLost, OutriderError
from outrider.lifecycle import Openable
from outrider.settings.url_parameters import with_url_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.consumer.losses import Loss
    from outrider.ports import Delivery


class RedisSource(Openable):
    """Receives from a group of one stream. A missing group is created, and begins with the oldest
    entry.

    One process at a time receives, in order; the others stand by. When it ends or dies, the next
    one begins with the entries that are not acknowledged. With `ordered=False` many processes share
    the group, and events of an aggregate may overtake each other. Entries that are trimmed before
    they are handled are lost; `take_losses` tells which.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        group: str,
        ordered: bool = True,
        dead_letters: str | None = None,
        config: RedisConfig | None = None,
    ) -> None:
        """`dead_letters` is a stream; None means `<stream>.dlq`."""
        if not stream or not group:
            raise ConfigurationError("a Redis source needs the name of a stream and of a group")
        url, self._config = with_url_settings(url, config or RedisConfig())
        self._pool = ConnectionPool(url, self._config)
        self._group = Group(self._pool, stream, group)
        self._dead_letters = DeadLetters(self._group, dead_letters)
        kind = OrderedReader if ordered else SharedReader
        self._reader: Reader = kind(self._group, self._config.takeover_after)
        self._unacknowledged: dict[bytes, Delivery] = {}
        self._acknowledgements = _Acknowledgements(self._group)
        self._renewing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        group = f"stream {self._group.stream!r} group {self._group.name!r}"
        return f"<RedisSource {self._pool.address} {group}>"

    async def open(self) -> None:
        """Connect and create the group.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._pool.open()
        await self._group.create()
        await self._dead_letters.check()
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew(), name="outrider-redis-lease")

    async def close(self) -> None:
        """Unacknowledged entries are delivered again; `open` makes the source usable again."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait({renewing})
            with suppress(OutriderError):
                await self._reader.release()
        self._mark_lost()
        await self._pool.close()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        try:
            read = await self._reader.read(limit)
        except LeaseLost:
            self._mark_lost()
            return []
        found = [each for each in read if each.message[0] not in self._unacknowledged]
        self._unacknowledged |= {delivery.message[0]: delivery for delivery in found}
        return found

    def take_losses(self) -> list[Loss]:
        return self._group.losses.take()

    async def acknowledge(self, delivery: Delivery, /) -> None:
        if not delivery.lost:
            with _as_unavailable():
                await self._acknowledge(delivery)

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        """Add the entry to the dead letters, with the reason in the field `dead-letter-reason`."""
        if delivery.lost:
            return
        try:
            with _as_unavailable():
                # Not in one transaction: Redis would acknowledge even if XADD failed.
                await self._dead_letters.write(self._reader, delivery, reason)
                await self._acknowledge(delivery)
        except LeaseLost:
            self._mark_lost()

    async def adjust_crash_count(self, delivery: Delivery, by: int = 1, /) -> None:
        with _as_unavailable():
            await self._group.crashes.adjust(delivery, by)

    async def _acknowledge(self, delivery: Delivery) -> None:
        entry, _ = delivery.message
        if delivery.suspect:
            acknowledgement = ("XACK", self._group.stream, self._group.name, entry)
            await self._pool.ask(acknowledgement, self._group.crashes.delete(entry))
        else:
            await self._acknowledgements.add(entry)
        self._unacknowledged.pop(entry, None)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._config.takeover_after.total_seconds() / 3)
            with suppress(Exception):  # `receive` raises the same error
                try:
                    await self._reader.renew(list(self._unacknowledged))
                except LeaseLost:
                    self._mark_lost()

    def _mark_lost(self) -> None:
        for delivery in self._unacknowledged.values():
            delivery.lost = True
        self._unacknowledged.clear()
        self._reader.reset()


@contextmanager
def _as_unavailable() -> Iterator[None]:
    """A person may correct the server's settings, and the message is kept until then."""
    try:
        yield
    except ConfigurationError as error:
        raise BrokerUnavailable(str(error)) from error


class _Acknowledgements:
    """Entries that are added while a call is on its way go together in the next call."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._one_call = asyncio.Lock()
        self._entries: list[bytes] = []
        self._next: asyncio.Task[None] | None = None

    async def add(self, entry: bytes) -> None:
        """Returns when the server has it; it is sent even if the caller is cancelled."""
        self._entries.append(entry)
        if self._next is None:
            self._next = asyncio.create_task(self._send(), name="outrider-redis-acknowledge")
            self._next.add_done_callback(_retrieve_error)
        await asyncio.shield(self._next)

    async def _send(self) -> None:
        async with self._one_call:
            entries, self._entries, self._next = self._entries, [], None
            await self._group.pool.ask(("XACK", self._group.stream, self._group.name, *entries))


def _retrieve_error(task: asyncio.Task[None]) -> None:
    """So that asyncio logs no error that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
