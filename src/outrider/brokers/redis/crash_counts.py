"""The crash counts of a group: a hash beside the stream, which outlives the processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.brokers.redis.connection import Command, ConnectionPool
    from outrider.ports import Delivery

_OWNER: Final = "owner"


class CrashCounts:
    """The hash `<stream>.<group>.crashes` has one field for each suspect with a crash.

    Its field `owner` names the process that receives in order. It stays there when that process
    dies, and is deleted when the process closes its source. An empty hash does not exist.
    """

    def __init__(self, pool: ConnectionPool, stream: str, group: str) -> None:
        self._pool, self._key = pool, f"{stream}.{group}.crashes"
        self._me = uuid4().hex.encode()

    @property
    def begin(self) -> tuple[Command, Command]:
        """The first reply names the last owner, see `died`."""
        return ("HGET", self._key, _OWNER), ("HSET", self._key, _OWNER, self._me)

    def died(self, owner: bytes | None) -> bool:
        """Whether the last owner died; a process that lost its connection is still the owner."""
        return owner not in (None, self._me)

    @property
    def end(self) -> Command:
        return ("HDEL", self._key, _OWNER)

    async def mark(self, suspects: Sequence[Delivery]) -> None:
        """Make them suspects, with their counts."""
        if suspects:
            entries = (delivery.message[0] for delivery in suspects)
            [counts] = await self._pool.ask(("HMGET", self._key, *entries))
            for delivery, count in zip(suspects, counts, strict=True):
                delivery.suspect, delivery.crash_count = True, int(count or 0)

    async def adjust(self, delivery: Delivery, by: int) -> None:
        """Sets a number instead of adding one, so that a repeated call counts once."""
        entry, count = delivery.message[0], max(0, delivery.crash_count + by)
        store: Command = ("HSET", self._key, entry, count)
        await self._pool.ask(store if count else self.delete(entry))
        delivery.crash_count = count

    def delete(self, entry: bytes) -> Command:
        return ("HDEL", self._key, entry)
