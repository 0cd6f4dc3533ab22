"""The source: messages of one consumer group, from the server's hands into a consumer's."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from outrider.brokers.redis.config import RedisConfig
from outrider.brokers.redis.connection import ConnectionPool
from outrider.brokers.redis.messages import to_dead_letter
from outrider.brokers.redis.readers import Group, OrderedReader, Reader, SharedReader
from outrider.errors import BrokerUnavailable, ConfigurationError, LeaseLost, OutriderError
from outrider.lifecycle import Openable
from outrider.settings.url_parameters import with_url_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.ports import Delivery


class RedisSource(Openable):
    """Receives from a group of one stream, which is made if it is missing, with all it holds.

    In order: one process at a time receives, the others stand by, and what is not acknowledged
    when one ends or dies comes first at the next. With `ordered=False` many processes share the
    work, and events of an aggregate may overtake each other. What is set aside goes to another
    stream, with the reason. Entries that were trimmed before they were handled are gone.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        group: str,
        dead_letter_stream: str | None = None,
        ordered: bool = True,
        config: RedisConfig | None = None,
    ) -> None:
        if not stream or not group:
            raise ConfigurationError("a Redis source needs the name of a stream and of a group")
        url, self._config = with_url_settings(url, config or RedisConfig())
        self._links = ConnectionPool(url, self._config)
        self._group = Group(self._links, stream, group)
        self._dead_letters = dead_letter_stream or f"{stream}.dlq"
        kind = OrderedReader if ordered else SharedReader
        self._reader: Reader = kind(self._group, self._config.lease)
        self._in_hand: dict[bytes, Delivery] = {}
        self._acknowledgements = _Acknowledgements(self._group)
        self._keeping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        group = f"stream {self._group.stream!r} group {self._group.name!r}"
        return f"<RedisSource {self._links.address} {group}>"

    async def open(self) -> None:
        """Connect and make the group; raises ConfigurationError if that can never work."""
        self._links.open()
        await self._group.make()
        # Fails if the name belongs to something else, which dead_letter would find out too late.
        await self._links.ask(("XLEN", self._dead_letters))
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="outrider-redis-lease")

    async def close(self) -> None:
        """What is in hand comes again, to this source or another."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait({keeping})
            with suppress(OutriderError):
                await self._reader.release()
        self._lose()
        await self._links.close()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        try:
            read = await self._reader.read(limit)
        except LeaseLost:
            self._lose()
            return []
        found = [delivery for delivery in read if delivery.message[0] not in self._in_hand]
        self._in_hand |= {delivery.message[0]: delivery for delivery in found}
        return found

    async def acknowledge(self, delivery: Delivery, /) -> None:
        if not delivery.lost:
            with _worth_repeating():
                await self._acknowledge(delivery)

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        if delivery.lost:
            return
        letter = to_dead_letter(self._group.stream, delivery, reason)
        try:
            with _worth_repeating():
                # Not in one transaction: the second would be done even if the first failed.
                await self._reader.do(("XADD", self._dead_letters, "*", *letter))
                await self._acknowledge(delivery)
        except LeaseLost:
            self._lose()

    async def _acknowledge(self, delivery: Delivery) -> None:
        entry, _ = delivery.message
        await self._acknowledgements.add(entry)
        self._in_hand.pop(entry, None)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._config.lease.total_seconds() / 3)
            with suppress(Exception):  # whoever receives hears of it as well
                try:
                    await self._reader.keep(list(self._in_hand))
                except LeaseLost:
                    self._lose()

    def _lose(self) -> None:
        for delivery in self._in_hand.values():
            delivery.lost = True
        self._in_hand.clear()
        self._reader.forget()


@contextmanager
def _worth_repeating() -> Iterator[None]:
    """A person may mend it, and the message is in hand until then."""
    try:
        yield
    except ConfigurationError as error:
        raise BrokerUnavailable(str(error)) from error


class _Acknowledgements:
    """Those that come while a call is on its way go together in the next one."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._one_call = asyncio.Lock()
        self._entries: list[bytes] = []
        self._next: asyncio.Task[None] | None = None

    async def add(self, entry: bytes) -> None:
        """Returns when the server has it, which it gets even if the caller is cancelled."""
        self._entries.append(entry)
        if self._next is None:
            self._next = asyncio.create_task(self._send(), name="outrider-redis-acknowledge")
            self._next.add_done_callback(_look_at)
        await asyncio.shield(self._next)

    async def _send(self) -> None:
        async with self._one_call:
            entries, self._entries, self._next = self._entries, [], None
            await self._group.links.ask(("XACK", self._group.stream, self._group.name, *entries))


def _look_at(task: asyncio.Task[None]) -> None:
    """So that nobody warns about an error that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
