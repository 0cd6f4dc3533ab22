"""The durable consumers of a group on the server; each new one continues where the last ended.

JetStream delivers the unacknowledged messages of a dead client again only after `ack_wait`, and
newer messages at once. So a source that takes over creates a new consumer, which starts after the
last message up to which all are acknowledged, and then deletes the old one. A crash in between
loses nothing.

The description of a consumer holds what the next source must know: whether the last one was closed,
which messages are suspects, and the crashes that were counted against them.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outrider.brokers.nats.connection import Connection
    from outrider.ports import Delivery

_DESCRIBED_BY_US: Final = "outrider: "
_MAX_COUNTS: Final = 100
"""A description has room for 4096 bytes."""
_MULTIPLE_FILTERS_SINCE: Final = (2, 10)
_NANOSECONDS: Final = 1e9


@dataclass
class Record:
    """The description of a consumer."""

    closed: bool = False
    """Whether the last source was closed, so that no process died."""
    suspects: int = 0
    """The last message of the stream that a dead process may have held."""
    crashes: dict[str, int] = field(default_factory=dict)
    """By the number of the message in the stream."""

    @classmethod
    def read(cls, description: str) -> Record:
        with suppress(ValueError, TypeError):  # somebody else may have written it
            return cls(**json.loads(description.removeprefix(_DESCRIBED_BY_US)))
        return cls()

    def __str__(self) -> str:
        latest = dict(list(self.crashes.items())[-_MAX_COUNTS:])
        return _DESCRIBED_BY_US + json.dumps(asdict(self) | {"crashes": latest})


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A consumer of the group on the server."""

    name: str
    ack_wait: float
    record: Record
    is_shared: bool = False

    def mark(self, delivery: Delivery) -> None:
        """Say whether it is a suspect."""
        about = delivery.message.metadata
        again = self.is_shared and about.num_delivered > 1
        if again or about.sequence.stream <= self.record.suspects:
            delivery.suspect = True
            delivery.crash_count = self.record.crashes.get(str(about.sequence.stream), 0)


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
        self.record = Record.read(config.get("description", ""))
        self.last_delivered: int = info["delivered"]["stream_seq"]


def _inherited(found: Sequence[_Progress], last: int, *, died: bool) -> Record:
    """The record of a new consumer; `last` is the last message of the stream."""
    record = Record()
    for progress in sorted(found, key=lambda progress: progress.created):
        held = progress.last_delivered if died and not progress.record.closed else 0
        record.suspects = min(last, max(record.suspects, progress.record.suspects, held))
        record.crashes |= progress.record.crashes
    return record


class Consumers:
    """All consumers of one group: `<group>-<number>-<random>`, or `<group>` if it is shared."""

    def __init__(self, stream: str, group: str, subjects: list[str], ack_wait: float) -> None:
        self._stream, self._group = stream, group
        self._subjects, self._ack_wait = subjects, ack_wait
        self._intended: dict[str, int] = {}
        """Counts on their way: a repeated call must not count twice what the first one stored."""
        self._own_name = re.compile(rf"{re.escape(group)}(-(?P<number>\d+)-[0-9a-f]{{8}})?")

    async def newest(self, connection: Connection) -> str | None:
        names = await self._names(connection)
        return max(names, key=lambda name: (self._number(name), name), default=None)

    async def replace(
        self, connection: Connection, newest: str | None, *, died: bool
    ) -> Consumer | None:
        """Creates the successor of `newest` and deletes all others.

        None if another source was faster. If the last source died, what it held is suspect.
        """
        number = self._number(newest) + 1 if newest else 1
        name = f"{self._group}-{number}-{secrets.token_hex(4)}"
        before = await self._names(connection)
        try:
            created = await self._create(connection, name, before, died=died)
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
            found = await self._progress(connection, self._group)
            return Consumer(
                name=self._group, ack_wait=found.ack_wait, record=found.record, is_shared=True
            )
        created = await self._create(connection, self._group, before, died=True)
        for other in before:
            await self.delete(connection, other)
        return created

    async def adjust_crash_count(self, connection: Connection, sequence: int, by: int) -> int:
        """Returns the new count, when the newest consumer of the group has it."""
        key = str(sequence)

        def count(record: Record) -> None:
            record.crashes[key] = self._intended.setdefault(key, record.crashes.get(key, 0) + by)

        await self._change(connection, await self.newest(connection) or self._group, count)
        return self._intended.pop(key)

    async def mark_closed(self, connection: Connection, name: str) -> None:
        await self._change(connection, name, lambda record: setattr(record, "closed", True))

    async def _change(
        self, connection: Connection, name: str, change: Callable[[Record], None]
    ) -> None:
        info = await self._info(connection, name)
        progress = _Progress(info)
        record, floor = progress.record, progress.ack_floor
        change(record)
        record.crashes = {
            key: count for key, count in record.crashes.items() if count > 0 and int(key) > floor
        }
        await connection.request_api(
            f"CONSUMER.DURABLE.CREATE.{self._stream}.{name}",
            stream_name=self._stream,
            config=info["config"] | {"description": str(record)},
            action="update",
        )

    async def exists(self, connection: Connection, name: str) -> bool:
        try:
            await self._progress(connection, name)
        except NotFoundError:
            return False
        return True

    async def delete(self, connection: Connection, name: str) -> None:
        with suppress(NotFoundError):
            await connection.js.delete_consumer(self._stream, name)

    async def _create(
        self, connection: Connection, name: str, before: Sequence[str], *, died: bool
    ) -> Consumer:
        found = [await self._progress(connection, other) for other in before]
        furthest = max(found, key=lambda progress: progress.ack_floor, default=None)
        config = ConsumerConfig(
            durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=self._ack_wait
        )
        record = Record()
        if furthest is not None:
            # A stream that was restored from a backup may end before the acknowledged message.
            last = (await connection.js.stream_info(self._stream)).state.last_seq
            config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = min(furthest.ack_floor, last) + 1
            record = _inherited(found, last, died=died)
        config.description = str(record)
        self._set_filter(connection, config)
        await connection.js.add_consumer(self._stream, config)
        shared = name == self._group
        return Consumer(name=name, ack_wait=self._ack_wait, record=record, is_shared=shared)

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
        return _Progress(await self._info(connection, name))

    async def _info(self, connection: Connection, name: str) -> dict[str, Any]:
        info = await connection.request_api(f"CONSUMER.INFO.{self._stream}.{name}")
        if "config" not in info:
            raise NotFoundError  # The server is deleting it.
        return info

    def _number(self, name: str) -> int:
        found = self._own_name.fullmatch(name)
        return int((found and found["number"]) or 0)
