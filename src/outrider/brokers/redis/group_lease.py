"""A lease on a consumer group: a key with the holder's token, which expires unless renewed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis import exceptions

from outrider.errors import LeaseLost

if TYPE_CHECKING:
    from datetime import timedelta

    from outrider.brokers.redis.connection import Command, ConnectionPool


class GroupLease:
    """Works with WATCH and MULTI instead of scripts, which a careful operator forbids."""

    def __init__(self, pool: ConnectionPool, key: str, duration: timedelta) -> None:
        self._pool, self._key = pool, key
        self._duration_ms = int(duration.total_seconds() * 1000)
        self._token: bytes | None = None

    @property
    def is_held(self) -> bool:
        """As far as this process knows."""
        return self._token is not None

    async def take(self) -> bool:
        """With a new fencing token each time, so that no earlier holder is taken for this one."""
        # Set before the reply: if the reply is lost, the first use shows whether we have the lease.
        self._token = uuid4().hex.encode()
        command = ("SET", self._key, self._token, "NX", "PX", self._duration_ms)
        [taken] = await self._pool.ask(command)
        if not taken:
            self.reset()
        return self.is_held

    async def renew(self) -> None:
        await self.within(("PEXPIRE", self._key, self._duration_ms))

    async def release(self, *commands: Command) -> None:
        """Run these commands and give up the lease, if it is ours."""
        if self.is_held:
            await self.within(*commands, ("DEL", self._key))
            self.reset()

    def reset(self) -> None:
        """No longer the holder, as far as this process knows; the key stays as it is."""
        self._token = None

    async def within(self, *commands: Command) -> list[Any]:
        """Run all commands while we hold the lease, or none of them: then raises LeaseLost."""
        watch: tuple[Command, ...] = (("WATCH", self._key), ("GET", self._key))
        async with self._pool.connection() as connection:
            done = None
            while done is None:  # EXEC does nothing if the key changed: our own renewal does that
                _, holder = self._pool.checked(await connection.ask(*watch))
                if holder is None or holder != self._token:
                    raise LeaseLost(f"the lease {self._key} is not ours any more")
                *queued, done = await connection.ask(("MULTI",), *commands, ("EXEC",))
            if isinstance(done, exceptions.RedisError):
                self._pool.checked([*queued, done])
            replies: list[Any] = done
            return replies
