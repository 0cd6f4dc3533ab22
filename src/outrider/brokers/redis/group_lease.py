"""Who of many processes receives: the one whose token is in a key that ends unless renewed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis import exceptions

from outrider.errors import LeaseLost

if TYPE_CHECKING:
    from datetime import timedelta

    from outrider.brokers.redis.connection import Command, ConnectionPool


class GroupLease:
    """Works without scripts, which a careful operator forbids."""

    def __init__(self, links: ConnectionPool, key: str, duration: timedelta) -> None:
        self._links, self._key = links, key
        self._milliseconds = int(duration.total_seconds() * 1000)
        self._token: bytes | None = None

    @property
    def is_held(self) -> bool:
        """As far as we know."""
        return self._token is not None

    async def take(self) -> bool:
        """Under a new token each time, so that no earlier holder is taken for this one."""
        # Known before the reply: should that be lost, it turns out when the lease is first used.
        self._token = uuid4().hex.encode()
        token = ("SET", self._key, self._token, "NX", "PX", self._milliseconds)
        [taken] = await self._links.ask(token)
        if not taken:
            self.forget()
        return self.is_held

    async def renew(self) -> None:
        await self.within(("PEXPIRE", self._key, self._milliseconds))

    async def release(self) -> None:
        if self.is_held:
            await self.within(("DEL", self._key))
            self.forget()

    def forget(self) -> None:
        self._token = None

    async def within(self, *commands: Command) -> list[Any]:
        """Do all of it while the lease is ours, or nothing: raises LeaseLost then."""
        watch: tuple[Command, ...] = (("WATCH", self._key), ("GET", self._key))
        async with self._links.link() as link:
            done = None
            while done is None:  # our own renewal disturbs as well
                _, holder = self._links.checked(await link.ask(*watch))
                if holder is None or holder != self._token:
                    raise LeaseLost(f"the lease {self._key} is not ours any more")
                *queued, done = await link.ask(("MULTI",), *commands, ("EXEC",))
            if isinstance(done, exceptions.RedisError):
                self._links.checked([*queued, done])
            replies: list[Any] = done
            return replies
