"""The source: one at a time receives for a group, and another takes over from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nats.js.api import RetentionPolicy, StreamConfig
from nats.js.errors import NotFoundError

from outrider.brokers.nats.active_consumer import ActiveConsumer
from outrider.brokers.nats.config import check_names, covers
from outrider.brokers.nats.connection import NATS_ERRORS, Cluster, Connection
from outrider.brokers.nats.consumers import Consumer, Consumers
from outrider.brokers.nats.dead_letters import DeadLetters
from outrider.brokers.nats.liveness import Liveness
from outrider.errors import BrokerUnavailable, ConfigurationError
from outrider.lifecycle import Openable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.brokers.nats.config import NatsConfig
    from outrider.ports import Delivery


class NatsSource(Openable):
    """Receives from a stream for a group.

    With `ordered` one source of the group receives; the others stand by, and one of them takes
    over, from the oldest event that was not acknowledged, when it closes, dies or hangs. Without,
    all of them share the messages in no order. Messages that are set aside go to
    `dead_letter_subject`, in the stream `<stream>_DLQ`, which is created when it is first needed.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        stream: str = "EVENTS",
        group: str,
        subjects: str | Sequence[str] = (),
        ordered: bool = True,
        dead_letter_subject: str | None = None,
        config: NatsConfig | None = None,
    ) -> None:
        self._cluster = Cluster(url, config)
        config = self._cluster.config
        subjects = [subjects] if isinstance(subjects, str) else list(subjects)
        self._dead_letters = DeadLetters(stream, group, dead_letter_subject, config.replicas)
        check_names(
            {"stream": stream, "group": group},
            {"dead_letter_subject": self._dead_letters.subject},
            subjects,
        )
        self._stream, self._group, self._ordered = stream, group, ordered
        self._consumers = Consumers(stream, group, subjects, config.ack_wait.total_seconds())
        self._presence = Liveness(stream, group, config.takeover_after.total_seconds())
        self._opening = asyncio.Lock()
        self._connection: Connection | None = None
        self._tenure: ActiveConsumer | None = None
        self._mine: str | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<NatsSource {self._cluster} stream {self._stream!r} group {self._group!r}>"

    async def open(self) -> None:
        """Connect, and check the stream.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._closed = False
        await self._connected()

    async def close(self) -> None:
        """What is in hand comes again; `open` makes the source usable again."""
        self._closed = True
        async with self._opening:
            tenure, self._tenure = self._tenure, None
            connection, self._connection = self._connection, None
            if tenure is not None:
                await tenure.end(give_back=not self._ordered)
            if connection is not None:
                await connection.end()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        connection = await self._connected()
        try:
            if self._tenure is None or self._tenure.over:
                self._tenure = await self._begin(connection)
            return await self._tenure.receive(limit) if self._tenure else []
        except NATS_ERRORS as error:
            raise self._cluster.translate(error, connection) from error

    async def acknowledge(self, delivery: Delivery, /) -> None:
        if self._tenure is None or delivery.lost:
            return
        try:
            await self._tenure.acknowledge(delivery)
        except NATS_ERRORS as error:
            raise self._cannot(error) from error

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        if self._connection is None or delivery.lost:
            return
        try:
            await self._dead_letters.write(self._connection, delivery.message, reason)
        except NATS_ERRORS as error:
            raise self._cannot(error) from error
        await self.acknowledge(delivery)

    def _cannot(self, error: Exception) -> BrokerUnavailable:
        """Not now, at least: the message stays in hand."""
        return BrokerUnavailable(str(self._cluster.translate(error, self._connection)))

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._closed:
                raise BrokerUnavailable(f"{self!r} was closed")
            if self._connection is None or self._connection.lost:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> Connection:
        connection = await self._cluster.connect()
        try:
            self._check((await connection.js.stream_info(self._stream)).config)
        except NotFoundError:
            await connection.end()
            raise BrokerUnavailable(f"{self!r}: there is no such stream yet") from None
        except BaseException as error:
            await connection.end()
            if isinstance(error, NATS_ERRORS):
                raise self._cluster.translate(error, connection) from error
            raise
        return connection

    def _check(self, stream: StreamConfig) -> None:
        problems = []
        dead = self._dead_letters.subject
        if any(covers(pattern, dead) for pattern in stream.subjects or ()):
            problems.append(f"it takes {dead} too, and dead letters would come back")
        if self._ordered and stream.retention == RetentionPolicy.WORK_QUEUE:
            problems.append("a work queue lets nobody take over in order: set ordered to false")
        if problems:
            raise ConfigurationError(f"{self!r}: {'; '.join(problems)}")

    async def _begin(self, connection: Connection) -> ActiveConsumer | None:
        """Receive from now on, if nobody else does."""
        if self._tenure is not None:
            await self._tenure.end(give_back=False)
        find = self._take_over if self._ordered else self._consumers.share
        consumer = await find(connection)
        if consumer is None:
            return None
        # What is fetched ahead, others who share cannot have.
        prefetch = self._cluster.config.prefetch if self._ordered else 0
        tenure = ActiveConsumer(connection, self._stream, consumer, self._consumers, prefetch)
        connection.on_lost = tenure.lose
        await tenure.begin()
        return tenure

    async def _take_over(self, connection: Connection) -> Consumer | None:
        await self._presence.leave()
        newest = await self._consumers.newest(connection)
        if newest not in (None, self._mine) and not await self._presence.is_missed(connection):
            return None
        await self._presence.announce(connection)
        consumer = await self._consumers.succeed(connection, newest)
        if consumer is None:
            await self._presence.leave()
        else:
            self._mine = consumer.name
        return consumer
