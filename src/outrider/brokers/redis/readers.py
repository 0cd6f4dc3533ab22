"""Two ways to read a group: by one process at a time, in order, or by many, in any."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from redis import exceptions

from outrider.brokers.redis.group_lease import GroupLease
from outrider.brokers.redis.messages import to_delivery
from outrider.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from outrider.brokers.redis.connection import Command, ConnectionPool
    from outrider.ports import Delivery

_WAIT: Final = 1.0
_STAND_BY: Final = 0.5
_MANY: Final = 1000
_START: Final = b"0-0"


class Group:
    """A consumer group, made when it is missing."""

    def __init__(self, links: ConnectionPool, stream: str, name: str) -> None:
        self.links, self.stream, self.name = links, stream, name

    async def make(self) -> None:
        """It begins with everything that is in the stream."""
        create: Command = ("XGROUP", "CREATE", self.stream, self.name, "0", "MKSTREAM")
        async with self.links.link() as link:
            [reply] = await link.ask(create)
        if not str(reply).startswith("BUSYGROUP"):
            self.links.checked([reply])

    async def was_there(self, replies: list[Any]) -> bool:
        """Whether the group was there; if it had been deleted, it is made again."""
        errors = [str(reply) for reply in replies if isinstance(reply, exceptions.ResponseError)]
        if any(error.startswith("NOGROUP") for error in errors):
            await self.make()
            return False
        self.links.checked(replies)
        return True

    async def deliveries(self, entries: list[Any], counts: list[Any]) -> list[Delivery]:
        """Without those that were deleted from the stream while they were pending."""
        if gone := [entry for entry, fields in entries if fields is None]:
            await self.links.ask(("XACK", self.stream, self.name, *gone))
        count_of = {row[0]: row[3] for row in counts}
        return [
            to_delivery(entry, fields, count_of.get(entry, 1))
            for entry, fields in entries
            if fields is not None
        ]

    def read(self, consumer: str, limit: int, after: bytes, *options: str | int) -> Command:
        who = ("GROUP", self.name, consumer)
        return ("XREADGROUP", *who, "COUNT", limit, *options, "STREAMS", self.stream, after)

    def claim(self, consumer: str, idle: int, after: bytes, limit: int, *options: str) -> Command:
        who = (self.stream, self.name, consumer)
        return ("XAUTOCLAIM", *who, idle, after, "COUNT", limit, *options)

    def pending(self, consumer: str, first: bytes, limit: int) -> Command:
        return ("XPENDING", self.stream, self.name, first, "+", limit, consumer)


class Reader(Protocol):
    """What a source needs; all but `forget` may raise LeaseLost."""

    async def read(self, limit: int, /) -> list[Delivery]:
        """What is cancelled or fails here comes again."""
        ...

    async def keep(self, in_hand: Sequence[bytes], /) -> None:
        """Show that we live, from time to time."""
        ...

    async def do(self, command: Command, /) -> None: ...
    async def release(self) -> None: ...
    def forget(self) -> None: ...


class OrderedReader:
    """Reads while it holds the lease, under a name that all processes share.

    It begins with what is pending, which is all that its predecessors left. Reading names the
    lease in the same transaction, so that a process that has lost it without knowing takes
    nothing away from its successor.
    """

    _NAME: Final = "outrider"

    def __init__(self, group: Group, lease: timedelta) -> None:
        self._group = group
        self._lease = GroupLease(group.links, f"{group.stream}.{group.name}.lease", lease)
        self.forget()

    def forget(self) -> None:
        self._lease.forget()
        self._claimed: bytes | None = _START
        """How far the pending entries of other names were taken over; None is all."""
        self._last = _START
        self._pending = True
        """Whether there may be pending entries behind the last that was read."""

    async def read(self, limit: int, /) -> list[Delivery]:
        if not self._lease.is_held and not await self._lease.take():
            await asyncio.sleep(_STAND_BY)
            return []
        while self._claimed is not None:
            await self._claim()
        if found := await self._read(limit):
            return found
        if not self._pending:
            await self._wait()
        return await self._read(limit)

    async def keep(self, _in_hand: Sequence[bytes], /) -> None:
        if self._lease.is_held:
            await self._lease.renew()

    async def do(self, command: Command, /) -> None:
        self._group.links.checked(await self._lease.within(command))

    async def release(self) -> None:
        await self._lease.release()

    async def _claim(self) -> None:
        """Entries may be pending under other names, if the group was not always read in order."""
        claim = self._group.claim(self._NAME, 0, self._claimed or _START, _MANY, "JUSTID")
        replies = await self._lease.within(claim)
        claimed = replies[0][0] if await self._group.was_there(replies) else _START
        self._claimed = claimed if claimed != _START else None

    async def _read(self, limit: int) -> list[Delivery]:
        # Until the reply is here: what the server hands out now is pending, whatever becomes of it.
        pending, self._pending = self._pending, True
        after = self._last if pending else b">"
        commands = [self._group.read(self._NAME, limit, after)]
        if pending:
            commands.append(self._group.pending(self._NAME, b"(" + after, limit))
        replies = await self._lease.within(*commands)
        if not await self._group.was_there(replies):
            self._last = _START
            return []
        entries = replies[0][0][1] if replies[0] else []
        found = await self._group.deliveries(entries, replies[1] if pending else [])
        if not self._lease.is_held:
            raise LeaseLost("the lease was lost meanwhile")
        self._pending = pending and bool(entries)
        if entries:
            self._last = entries[-1][0]
        return found

    async def _wait(self) -> None:
        """Until there is something new; without taking it, as no lease could be named."""
        group = self._group
        async with group.links.link(_WAIT) as link:
            [groups] = await link.ask(("XINFO", "GROUPS", group.stream))
            if isinstance(groups, exceptions.ResponseError) and "no such key" in str(groups):
                return
            [groups] = group.links.checked([groups])
            named = (dict(zip(row[::2], row[1::2], strict=True)) for row in groups)
            last = {row[b"name"]: row[b"last-delivered-id"] for row in named}
            after = last.get(group.name.encode(), _START)
            block = ("COUNT", 1, "BLOCK", int(_WAIT * 1000))
            waited = await link.ask(("XREAD", *block, "STREAMS", group.stream, after))
            group.links.checked(waited)


class SharedReader:
    """Reads under a name of its own, and claims what others have left alone for too long."""

    def __init__(self, group: Group, idle: timedelta) -> None:
        self._group = group
        self._idle = int(idle.total_seconds() * 1000)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.forget()

    def forget(self) -> None:
        self._claimed = _START
        self._claim_at = 0.0

    async def read(self, limit: int, /) -> list[Delivery]:
        if time.monotonic() >= self._claim_at and (found := await self._claim(limit)):
            return found
        block = ("BLOCK", int(_WAIT * 1000))
        async with self._group.links.link(_WAIT) as link:
            replies = await link.ask(self._group.read(self._name, limit, b">", *block))
        if not await self._group.was_there(replies) or not replies[0]:
            return []
        return await self._group.deliveries(replies[0][0][1], [])

    async def keep(self, in_hand: Sequence[bytes], /) -> None:
        """Not idle: only being handled."""
        if in_hand:
            who = (self._group.stream, self._group.name, self._name)
            await self._group.links.ask(("XCLAIM", *who, 0, *in_hand, "JUSTID"))

    async def do(self, command: Command, /) -> None:
        await self._group.links.ask(command)

    async def release(self) -> None:
        """What is in hand becomes idle."""

    async def _claim(self, limit: int) -> list[Delivery]:
        group = self._group
        claim = group.claim(self._name, self._idle, self._claimed, limit)
        async with group.links.link() as link:
            replies = await link.ask(claim, group.pending(self._name, b"-", _MANY))
        if not await group.was_there(replies):
            return []
        self._claimed, entries, *_ = replies[0]
        if self._claimed == _START:
            self._claim_at = time.monotonic() + self._idle / 3000
        return await group.deliveries([entry for entry in entries if entry], replies[1])
