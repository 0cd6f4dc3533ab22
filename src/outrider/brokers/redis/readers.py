"""Two ways to read a group: in order by one process at a time, or in any order by many."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from redis import exceptions

from outrider.brokers.redis.crash_counts import CrashCounts
from outrider.brokers.redis.group_lease import GroupLease
from outrider.brokers.redis.losses import Losses, count_trimmed, named
from outrider.brokers.redis.messages import to_delivery
from outrider.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from outrider.brokers.redis.connection import Command, ConnectionPool
    from outrider.ports import Delivery

_BLOCK_S: Final = 1.0
_STANDBY_INTERVAL_S: Final = 0.5
_MAX_CLAIMED: Final = 1000
_START: Final = b"0-0"


class Group:
    """A consumer group, created when it is missing."""

    def __init__(self, pool: ConnectionPool, stream: str, name: str) -> None:
        self.pool, self.stream, self.name = pool, stream, name
        self.crashes = CrashCounts(pool, stream, name)
        self.losses = Losses()

    async def create(self) -> None:
        """A new group begins with the oldest entry of the stream; an existing one stays.

        ENTRIESREAD is how many entries are gone already, and so no loss of this group.
        """
        command: Command = ("XGROUP", "CREATE", self.stream, self.name, "0", "MKSTREAM")
        async with self.pool.connection() as connection:
            [info] = await connection.ask(("XINFO", "STREAM", self.stream))
            stream = named(info) if isinstance(info, list) else {}
            gone = stream.get(b"entries-added", 0) - stream.get(b"length", 0)
            [reply] = await connection.ask((*command, "ENTRIESREAD", max(0, gone)))
            if isinstance(reply, exceptions.ResponseError) and not _is_busy(reply):
                [reply] = await connection.ask(command)  # before Redis 7.0
        if not _is_busy(reply):
            self.pool.checked([reply])

    async def existed(self, replies: list[Any]) -> bool:
        """False if the replies say that the group was deleted; it is created again then."""
        errors = [str(reply) for reply in replies if isinstance(reply, exceptions.ResponseError)]
        if any(error.startswith("NOGROUP") for error in errors):
            await self.create()
            return False
        self.pool.checked(replies)
        return True

    async def live(self, entries: Sequence[Any]) -> list[Delivery]:
        """Entries that were deleted from the stream while they were pending are acknowledged."""
        if deleted := [entry for entry, fields in entries if fields is None]:
            await self.pool.ask(("XACK", self.stream, self.name, *deleted))
            self.losses.deleted(deleted)
        return [to_delivery(entry, fields) for entry, fields in entries if fields is not None]

    def read(self, consumer: str, limit: int, after: bytes, *options: str | int) -> Command:
        who = ("GROUP", self.name, consumer)
        return ("XREADGROUP", *who, "COUNT", limit, *options, "STREAMS", self.stream, after)

    def read_new(self, consumer: str, limit: int, *options: str | int) -> tuple[Command, ...]:
        """For `new_entries`: the position of the group, and then its next entries."""
        position = (("XINFO", kind, self.stream) for kind in ("STREAM", "GROUPS"))
        return (*position, self.read(consumer, limit, b">", *options))

    def new_entries(self, replies: list[Any]) -> tuple[list[Any], Command | None]:
        """The entries, and a command that corrects the group's position after a loss."""
        stream, groups, found = replies
        entries = found[0][1] if found else []
        rows = {row[b"name"]: row for row in map(named, groups)}
        group = rows[self.name.encode()]
        lost = count_trimmed(named(stream), group) if entries else 0
        if not lost:
            return entries, None
        self.losses.trimmed(group[b"last-delivered-id"], entries[0][0], lost)
        # Before Redis 8.0 the server does not count lost entries as read.
        read, last = group[b"entries-read"] + lost + len(entries), entries[-1][0]
        return entries, ("XGROUP", "SETID", self.stream, self.name, last, "ENTRIESREAD", read)

    def claim(
        self, consumer: str, idle_ms: int, after: bytes, limit: int, *options: str
    ) -> Command:
        who = (self.stream, self.name, consumer)
        return ("XAUTOCLAIM", *who, idle_ms, after, "COUNT", limit, *options)


def _is_busy(reply: object) -> bool:
    return str(reply).startswith("BUSYGROUP")


class Reader(Protocol):
    """What a source needs; every method but `reset` may raise LeaseLost."""

    async def read(self, limit: int, /) -> list[Delivery]:
        """If it is cancelled or fails, the entries that it read are delivered again."""
        ...

    async def renew(self, unacknowledged: Sequence[bytes], /) -> None:
        """Show the server that this process is alive; called at intervals."""
        ...

    async def execute(self, command: Command, /) -> None:
        """Run a command that writes."""
        ...

    async def release(self) -> None:
        """Let another process take over at once."""
        ...

    def reset(self) -> None:
        """Begin again with the oldest pending entry."""
        ...


class OrderedReader:
    """Reads while it holds the lease, under a consumer name that all processes share.

    It begins with the pending entries, which its predecessors did not acknowledge. It checks the
    lease in the same transaction that reads, so a process that lost the lease without knowing takes
    no entry away from its successor.
    """

    _CONSUMER: Final = "outrider"

    def __init__(self, group: Group, takeover_after: timedelta) -> None:
        self._group = group
        key = f"{group.stream}.{group.name}.lease"
        self._lease = GroupLease(group.pool, key, takeover_after)
        self._has_suspects = False
        """Whether the pending entries are those of a process that died."""
        self.reset()

    def reset(self) -> None:
        self._lease.reset()
        self._is_owner = False
        self._claim_cursor: bytes | None = _START
        """Where to go on claiming pending entries of other consumer names; None after the last."""
        self._last = _START
        self._has_pending = True
        """Whether there may be pending entries behind the last one that was read."""

    async def read(self, limit: int, /) -> list[Delivery]:
        if not self._lease.is_held and not await self._lease.take():
            await asyncio.sleep(_STANDBY_INTERVAL_S)
            return []
        if not self._is_owner:
            await self._own()
        while self._claim_cursor is not None:
            await self._claim()
        while self._has_pending:
            if found := await self._read_pending(limit):
                return found
        if found := await self._read_new(limit):
            return found
        await self._wait_for_entries()
        return await self._read_new(limit)

    async def renew(self, _unacknowledged: Sequence[bytes], /) -> None:
        if self._lease.is_held:
            await self._lease.renew()

    async def execute(self, command: Command, /) -> None:
        self._group.pool.checked(await self._lease.within(command))

    async def release(self) -> None:
        """The mark of an owner stays while there are suspects, so that they stay suspects."""
        await self._lease.release(*(() if self._has_suspects else (self._group.crashes.end,)))

    async def _own(self) -> None:
        owner, _ = self._group.pool.checked(await self._lease.within(*self._group.crashes.begin))
        self._has_suspects |= self._group.crashes.died(owner)
        self._is_owner = True

    async def _claim(self) -> None:
        """Entries are pending under other names if the group was also read without order."""
        cursor = self._claim_cursor or _START
        claim = self._group.claim(self._CONSUMER, 0, cursor, _MAX_CLAIMED, "JUSTID")
        replies = await self._lease.within(claim)
        if not await self._group.existed(replies):
            self._claim_cursor = None
            return
        cursor, _, *deleted = replies[0]
        self._group.losses.deleted(*deleted)
        self._claim_cursor = cursor if cursor != _START else None

    async def _read_pending(self, limit: int) -> list[Delivery]:
        replies = await self._lease.within(self._group.read(self._CONSUMER, limit, self._last))
        if not await self._group.existed(replies):
            self._last = _START
            return []
        entries = replies[0][0][1] if replies[0] else []
        found = await self._group.live(entries)
        if self._has_suspects:
            await self._group.crashes.mark(found)
        self._check_lease()
        if entries:
            self._last = entries[-1][0]
        else:
            self._has_pending = self._has_suspects = False
        return found

    async def _read_new(self, limit: int) -> list[Delivery]:
        # True until the reply is here: if it is lost, the entries that it held are pending.
        self._has_pending = True
        replies = await self._lease.within(*self._group.read_new(self._CONSUMER, limit))
        if not await self._group.existed(replies):
            self._last = _START
            return []
        entries, correction = self._group.new_entries(replies)
        if correction is not None:
            await self.execute(correction)
        self._check_lease()
        self._has_pending = False
        if entries:
            self._last = entries[-1][0]
        return await self._group.live(entries)

    def _check_lease(self) -> None:
        if not self._lease.is_held:
            raise LeaseLost("the lease was lost meanwhile")

    async def _wait_for_entries(self) -> None:
        """With XREAD, which takes nothing: a blocking XREADGROUP could not check the lease."""
        group = self._group
        async with group.pool.connection(_BLOCK_S) as connection:
            [groups] = await connection.ask(("XINFO", "GROUPS", group.stream))
            if isinstance(groups, exceptions.ResponseError) and "no such key" in str(groups):
                return
            [groups] = group.pool.checked([groups])
            named = (dict(zip(row[::2], row[1::2], strict=True)) for row in groups)
            last = {row[b"name"]: row[b"last-delivered-id"] for row in named}
            after = last.get(group.name.encode(), _START)
            block = ("COUNT", 1, "BLOCK", int(_BLOCK_S * 1000))
            replies = await connection.ask(("XREAD", *block, "STREAMS", group.stream, after))
            group.pool.checked(replies)


class SharedReader:
    """Reads under a consumer name of its own, and claims entries that others left idle."""

    def __init__(self, group: Group, takeover_after: timedelta) -> None:
        self._group = group
        self._idle_ms = int(takeover_after.total_seconds() * 1000)
        self._consumer = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.reset()

    def reset(self) -> None:
        self._claim_cursor = _START
        self._claim_at = 0.0

    async def read(self, limit: int, /) -> list[Delivery]:
        if time.monotonic() >= self._claim_at and (found := await self._claim(limit)):
            return found
        read = self._group.read_new(self._consumer, limit, "BLOCK", int(_BLOCK_S * 1000))
        async with self._group.pool.connection(_BLOCK_S) as connection:
            replies = await connection.ask(*read)
        if not await self._group.existed(replies):
            return []
        entries, correction = self._group.new_entries(replies)
        if correction is not None:
            await self._group.pool.ask(correction)
        return await self._group.live(entries)

    async def renew(self, unacknowledged: Sequence[bytes], /) -> None:
        """Claim our own entries, which sets their idle time to zero."""
        if unacknowledged:
            who = (self._group.stream, self._group.name, self._consumer)
            await self._group.pool.ask(("XCLAIM", *who, 0, *unacknowledged, "JUSTID"))

    async def execute(self, command: Command, /) -> None:
        await self._group.pool.ask(command)

    async def release(self) -> None:
        """Nothing to do: unacknowledged entries become idle, and others claim them."""

    async def _claim(self, limit: int) -> list[Delivery]:
        """Entries of processes that died or hang, as suspects."""
        group = self._group
        claim = group.claim(self._consumer, self._idle_ms, self._claim_cursor, limit)
        async with group.pool.connection() as connection:
            replies = await connection.ask(claim)
        if not await group.existed(replies):
            return []
        self._claim_cursor, entries, *deleted = replies[0]
        group.losses.deleted(*deleted)
        if self._claim_cursor == _START:
            self._claim_at = time.monotonic() + self._idle_ms / 3000
        found = await group.live([entry for entry in entries if entry])
        await group.crashes.mark(found)
        return found
