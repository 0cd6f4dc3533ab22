"""The durable consumers of a group on the server; each new one continues where the last ended.

JetStream delivers the unacknowledged messages of a dead client again only after `ack_wait`, and
newer messages at once. So a source that takes over creates a new consumer, which starts after the
last message up to which all are acknowledged, and then deletes the old one. A crash in between
loses nothing.
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

_DESCRIPTION: Final = re.compile(r"outrider, try (\d+)")
_MULTIPLE_FILTERS_SINCE: Final = (2, 10)
_NANOSECONDS: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A consumer of the group on the server."""

    name: str
    ack_wait: float
    starts: int = 1
    """How many consumers in a row started at the same message; it may be what kills them."""


class _Progress:
    """How far a consumer is, from its description by the server."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        config = info["config"]
        # The server drops trailing zeros; without the "Z" such texts still sort by time.
        self.created: str = info["created"].rstrip("Z")
        self.ack_wait: float = config["ack_wait"] / _NANOSECONDS
        self.start: int = config.get("opt_start_seq") or 1
        # Servers before 2.10 report 0 until the first acknowledgement, wherever it started.
        self.ack_floor: int = max(info["ack_floor"]["stream_seq"], self.start - 1)
        """The last message of the stream up to which all are acknowledged."""
        found = _DESCRIPTION.fullmatch(config.get("description", ""))
        self.starts = int(found[1]) if found else 1
        self.has_received = info["delivered"]["consumer_seq"] > 0


class Consumers:
    """All consumers of one group: `<group>-<number>-<random>`, or `<group>` if it is shared."""

    def __init__(self, stream: str, group: str, subjects: list[str], ack_wait: float) -> None:
        self._stream, self._group = stream, group
        self._subjects, self._ack_wait = subjects, ack_wait
        self._own_name = re.compile(rf"{re.escape(group)}(-(?P<number>\d+)-[0-9a-f]{{8}})?")

    async def newest(self, connection: Connection) -> str | None:
        names = await self._names(connection)
        return max(names, key=lambda name: (self._number(name), name), default=None)

    async def replace(self, connection: Connection, newest: str | None) -> Consumer | None:
        """Creates the successor of `newest` and deletes all others.

        None if another source was faster.
        """
        number = self._number(newest) + 1 if newest else 1
        name = f"{self._group}-{number}-{secrets.token_hex(4)}"
        before = await self._names(connection)
        try:
            created = await self._create(connection, name, before)
        except NotFoundError:
            return None  # The source that deleted one of them meanwhile was faster.
        names = await self._names(connection)
        if await self._winner(connection, names) != name:
            await self.delete(connection, name)
            return None
        for other in names:
            if other != name:
                await self.delete(connection, other)
        return created

    async def shared(self, connection: Connection) -> Consumer:
        """The consumer that all sources of the group use together; created if it is missing."""
        before = await self._names(connection)
        if self._group in before:
            ack_wait = (await self._progress(connection, self._group)).ack_wait
            return Consumer(name=self._group, ack_wait=ack_wait)
        created = await self._create(connection, self._group, before)
        for other in before:
            await self.delete(connection, other)
        return created

    async def exists(self, connection: Connection, name: str) -> bool:
        try:
            await self._progress(connection, name)
        except NotFoundError:
            return False
        return True

    async def delete(self, connection: Connection, name: str) -> None:
        with suppress(NotFoundError):
            await connection.js.delete_consumer(self._stream, name)

    async def _create(self, connection: Connection, name: str, before: Sequence[str]) -> Consumer:
        found = [await self._progress(connection, other) for other in before]
        furthest = max(found, key=lambda progress: progress.ack_floor, default=None)
        config = ConsumerConfig(
            durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=self._ack_wait
        )
        starts = 1
        if furthest is not None:
            start = await self._next_sequence(connection, furthest)
            config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, start
            starts = furthest.starts + furthest.has_received if start == furthest.start else 1
        config.description = f"outrider, try {starts}"
        self._set_filter(connection, config)
        await connection.js.add_consumer(self._stream, config)
        return Consumer(name=name, ack_wait=self._ack_wait, starts=starts)

    async def _next_sequence(self, connection: Connection, furthest: _Progress) -> int:
        # A stream that was restored from a backup may end before the acknowledged message.
        state = (await connection.js.stream_info(self._stream)).state
        return min(furthest.ack_floor, state.last_seq) + 1

    def _set_filter(self, connection: Connection, config: ConsumerConfig) -> None:
        if len(self._subjects) > 1:
            version = connection.connected_server_version
            if (version.major, version.minor) < _MULTIPLE_FILTERS_SINCE:
                raise ConfigurationError("NATS: several subjects need nats-server 2.10 or later")
            config.filter_subjects = self._subjects
        elif self._subjects:
            config.filter_subject = self._subjects[0]

    async def _names(self, connection: Connection) -> list[str]:
        # The list of names also has consumers without a leader; the list of infos does not.
        names: list[str] = []
        while True:
            page = await connection.request_api(f"CONSUMER.NAMES.{self._stream}", offset=len(names))
            names += page.get("consumers") or []
            if not page.get("consumers") or len(names) >= page.get("total", 0):
                return [name for name in names if self._own_name.fullmatch(name)]

    async def _winner(self, connection: Connection, names: list[str]) -> str | None:
        """Of the consumers with the highest number, the one that was created first.

        Sources that take over at the same time all agree on it.
        """
        highest = max(map(self._number, names), default=0)
        rivals = []
        for name in names:
            if self._number(name) == highest:
                with suppress(NotFoundError):
                    rivals.append(((await self._progress(connection, name)).created, name))
        return min(rivals)[1] if rivals else None

    async def _progress(self, connection: Connection, name: str) -> _Progress:
        info = await connection.request_api(f"CONSUMER.INFO.{self._stream}.{name}")
        if "config" not in info:
            raise NotFoundError  # The server is deleting it.
        return _Progress(info)

    def _number(self, name: str) -> int:
        found = self._own_name.fullmatch(name)
        return int((found and found["number"]) or 0)
