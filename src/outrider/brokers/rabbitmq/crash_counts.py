"""Crashes counted against messages: a record in the small queue `<queue>.crashes`."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from outrider.brokers.rabbitmq.amqp import (
    CHANNEL,
    DELIVERY_MODE,
    MESSAGE_ID,
    PERSISTENT,
    ConnectionLost,
    ack_frame,
    methods,
    read_properties,
    write_header,
)
from outrider.brokers.rabbitmq.connection import publish_one, translate
from outrider.brokers.rabbitmq.queue_plan import crashes_queue
from outrider.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.brokers.rabbitmq.amqp import Message, Wire
    from outrider.brokers.rabbitmq.connection import Connection
    from outrider.ports import Delivery

_CLOSE_TIMEOUT: Final = timedelta(seconds=2)
_MAX_COUNTS: Final = 1000


@dataclass
class _Record:
    closed: bool = False
    """Whether the last process closed its source, so that nobody died."""
    crashes: dict[str, int] = field(default_factory=dict)
    """By message; see `_key`."""

    def update(self, body: bytes) -> None:
        with suppress(ValueError, TypeError):  # somebody else may have put anything there
            found: dict[str, Any] = json.loads(body)
            self.closed = bool(found.get("closed"))
            self.crashes |= {str(key): int(count) for key, count in found["crashes"].items()}


class CrashCounts:
    """Tells which messages are suspects: after a crash, all that the broker delivers again.

    Neither kind of queue has a count of its own that knows a crash from a lost connection. With
    `ordered`, a source that is closed leaves a mark, and the next one removes it with its first
    message; messages are suspects if there was none. Without order they are in any case, since
    the process that held them is not known.
    """

    def __init__(
        self, connection: Connection, timeout: timedelta, queue: str, *, ordered: bool
    ) -> None:
        self._connection, self._timeout, self._ordered = connection, timeout, ordered
        self._queue = crashes_queue(queue)
        self._one_change = asyncio.Lock()
        self._has_begun = False
        self._crashes: dict[str, int] = {}
        self._recovering = True
        self._settled: set[str] = set()
        self._intended: dict[str, int] = {}
        """Counts on their way: a repeated call must not count twice what the first one stored."""

    async def begin(self) -> None:
        """Before the first message is handed out."""
        if self._has_begun:
            return

        def open_again(record: _Record) -> None:
            self._recovering = not (self._ordered and record.closed)
            record.closed = False

        await self._change(open_again, self._timeout)
        self._has_begun = True

    def mark(self, deliveries: Sequence[Delivery]) -> None:
        """Those that the broker delivers again."""
        for delivery in deliveries if self._recovering else ():
            delivery.suspect = True
            delivery.crash_count = self._crashes.get(_key(delivery.message), 0)

    def end_recovery(self) -> None:
        """At the first new message: it comes after all that the dead process held."""
        self._recovering = not self._ordered

    def settled(self, suspect: Delivery) -> None:
        """The next change leaves its count out."""
        self._settled.add(_key(suspect.message))

    async def adjust(self, delivery: Delivery, by: int) -> None:
        key = _key(delivery.message)

        def count(record: _Record) -> None:
            self._settled.discard(key)
            record.crashes[key] = self._intended.setdefault(key, record.crashes.get(key, 0) + by)

        await self._change(count, self._timeout)
        delivery.crash_count = self._intended.pop(key)

    async def close(self, *, clean: bool) -> None:
        """If `clean`, tell the next process that nobody died, unless suspects may be left."""
        if clean and self._ordered and not self._recovering:
            with suppress(BrokerUnavailable):  # then the next process suspects too much
                await self._change(lambda record: setattr(record, "closed", True), _CLOSE_TIMEOUT)
        self._has_begun, self._recovering = False, True

    async def _change(self, change: Callable[[_Record], None], within: timedelta) -> None:
        try:
            async with self._one_change, asyncio.timeout(within.total_seconds()):
                await self._replace(change)
        except TimeoutError:
            blocked = self._connection.blocked
            raise self._unavailable(blocked or "no answer in time") from None
        except ConnectionLost as lost:
            raise translate(lost, self._connection.address, permanent=()) from lost
        except ConfigurationError as error:
            raise BrokerUnavailable(str(error)) from error

    async def _replace(self, change: Callable[[_Record], None]) -> None:
        """Read the record, store the new one, and only then remove the old one."""
        wire = await self._connection.wire()
        record, tag = _Record(), 0
        while got := await wire.get(self._queue):
            tag, body = got
            record.update(body)
        change(record)
        for key in [key for key, count in record.crashes.items() if count < 1] + [*self._settled]:
            record.crashes.pop(key, None)
        if record.closed or record.crashes:
            await self._publish(wire, record)
        if tag:
            wire.send(ack_frame(tag, multiple=True))
            # An answer shows that the broker has read the acknowledgement.
            declare = methods.Queue.Declare(queue=self._queue, passive=True)
            await wire.call(declare, methods.Queue.DeclareOk, CHANNEL)
        self._crashes, self._settled = record.crashes, set()

    async def _publish(self, wire: Wire, record: _Record) -> None:
        latest = dict(list(record.crashes.items())[-_MAX_COUNTS:])
        body = json.dumps({"closed": record.closed, "crashes": latest}).encode()
        header = write_header({DELIVERY_MODE: PERSISTENT}, len(body))
        try:
            await publish_one(wire, b"", self._queue.encode(), header, body)
        except BrokerUnavailable as refused:
            raise self._unavailable(str(refused)) from None

    def _unavailable(self, why: str) -> BrokerUnavailable:
        where = f"RabbitMQ at {self._connection.address}"
        return BrokerUnavailable(f"{where}: queue {self._queue!r} of counted crashes: {why}")


def _key(message: Message) -> str:
    """The same for every delivery of a message, whatever headers the broker adds."""
    try:
        message_id = read_properties(message.header).get(MESSAGE_ID, b"")
    except Exception:  # noqa: BLE001 - anybody may have sent anything
        message_id = b""
    found = blake2b(message.body, digest_size=16)
    found.update(message_id + b"\0" + message.routing_key)
    return found.hexdigest()
