"""The durable consumers of a group on the server: each goes on where the one before stood.

JetStream gives back what a dead client held only after a while, and newer messages at once. So
whoever takes over makes a new consumer that begins behind the last message up to which all are
acknowledged, and deletes the one before; a crash in between loses nothing.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outrider.brokers.nats.connection import Connection

_TRIES: Final = re.compile(r"outrider, try (\d+)")
_FILTERS_SINCE: Final = (2, 10)
_SECOND: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """One of them, as it was made or found."""

    name: str
    ack_wait: float
    tries: int = 1
    """How many in a row have begun with the same message: it may be what kills them."""


class _State:
    """How far one of them is, in the server's words."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        config = info["config"]
        # Without trailing zeros, so that text sorts as time does.
        self.created: str = info["created"].rstrip("Z")
        self.ack_wait: float = config["ack_wait"] / _SECOND
        self.begin: int = config.get("opt_start_seq") or 1
        # Servers before 2.10 say 0 until the first acknowledgement, wherever the consumer began.
        self.done: int = max(info["ack_floor"]["stream_seq"], self.begin - 1)
        """Up to which message of the stream all are acknowledged."""
        found = _TRIES.fullmatch(config.get("description", ""))
        self.tries = int(found[1]) if found else 1
        self.has_received = info["delivered"]["consumer_seq"] > 0


class Consumers:
    """All of one group."""

    def __init__(self, stream: str, group: str, subjects: list[str], ack_wait: float) -> None:
        self._stream, self._group = stream, group
        self._subjects, self._ack_wait = subjects, ack_wait
        self._own = re.compile(rf"{re.escape(group)}(-(?P<number>\d+)-[0-9a-f]{{8}})?")

    async def newest(self, connection: Connection) -> str | None:
        names = await self._names(connection)
        return max(names, key=lambda name: (self._number(name), name), default=None)

    async def succeed(self, connection: Connection, newest: str | None) -> Consumer | None:
        """A new one in place of all others, next to the newest; None if somebody was faster."""
        number = self._number(newest) + 1 if newest else 1
        name = f"{self._group}-{number}-{secrets.token_hex(4)}"
        before = await self._names(connection)
        try:
            made = await self._make(connection, name, before)
        except NotFoundError:
            return None  # whoever deleted one of them meanwhile was faster
        everybody = await self._names(connection)
        if await self._first_of_the_newest(connection, everybody) != name:
            await self.delete(connection, name)
            return None
        for other in everybody:
            if other != name:
                await self.delete(connection, other)
        return made

    async def share(self, connection: Connection) -> Consumer:
        """The one that all sources of the group use together."""
        before = await self._names(connection)
        if self._group in before:
            ack_wait = (await self._state(connection, self._group)).ack_wait
            return Consumer(name=self._group, ack_wait=ack_wait)
        made = await self._make(connection, self._group, before)
        for other in before:
            await self.delete(connection, other)
        return made

    async def exists(self, connection: Connection, name: str) -> bool:
        try:
            await self._state(connection, name)
        except NotFoundError:
            return False
        return True

    async def delete(self, connection: Connection, name: str) -> None:
        with suppress(NotFoundError):
            await connection.js.delete_consumer(self._stream, name)

    async def _make(self, connection: Connection, name: str, before: Sequence[str]) -> Consumer:
        found = [await self._state(connection, other) for other in before]
        latest = max(found, key=lambda state: state.done, default=None)
        config = ConsumerConfig(
            durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=self._ack_wait
        )
        tries = 1
        if latest is not None:
            start = await self._start(connection, latest)
            config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, start
            tries = latest.tries + latest.has_received if start == latest.begin else 1
        config.description = f"outrider, try {tries}"
        self._filter(connection, config)
        await connection.js.add_consumer(self._stream, config)
        return Consumer(name=name, ack_wait=self._ack_wait, tries=tries)

    async def _start(self, connection: Connection, latest: _State) -> int:
        """Not behind the end of a stream that was restored from a copy."""
        state = (await connection.js.stream_info(self._stream)).state
        return min(latest.done, state.last_seq) + 1

    def _filter(self, connection: Connection, config: ConsumerConfig) -> None:
        if len(self._subjects) > 1:
            version = connection.connected_server_version
            if (version.major, version.minor) < _FILTERS_SINCE:
                raise ConfigurationError("NATS: several subjects need nats-server 2.10 or later")
            config.filter_subjects = self._subjects
        elif self._subjects:
            config.filter_subject = self._subjects[0]

    async def _names(self, connection: Connection) -> list[str]:
        """From the server's own list, which lacks none that has no leader now."""
        names: list[str] = []
        while True:
            page = await connection.ask(f"CONSUMER.NAMES.{self._stream}", offset=len(names))
            names += page.get("consumers") or []
            if not page.get("consumers") or len(names) >= page.get("total", 0):
                return [name for name in names if self._own.fullmatch(name)]

    async def _first_of_the_newest(self, connection: Connection, names: list[str]) -> str | None:
        """Of several that were made at the same time, all must agree on one."""
        top = max(map(self._number, names), default=0)
        rivals = []
        for name in names:
            if self._number(name) == top:
                with suppress(NotFoundError):
                    rivals.append(((await self._state(connection, name)).created, name))
        return min(rivals)[1] if rivals else None

    async def _state(self, connection: Connection, name: str) -> _State:
        info = await connection.ask(f"CONSUMER.INFO.{self._stream}.{name}")
        if "config" not in info:
            raise NotFoundError  # it is just being deleted
        return _State(info)

    def _number(self, name: str) -> int:
        found = self._own.fullmatch(name)
        return int((found and found["number"]) or 0)
