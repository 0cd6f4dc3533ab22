"""The source: one source of a group is active at a time, and another takes over from it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from nats.js.api import RetentionPolicy, StreamConfig
from nats.js.errors import NotFoundError

from outrider.brokers.nats.active_consumer import ActiveConsumer
from outrider.brokers.nats.config import check_names, covers
from outrider.brokers.nats.connection import NATS_ERRORS, Cluster, Connection, translate
from outrider.brokers.nats.consumers import Consumer, Consumers
from outrider.brokers.nats.dead_letters import DeadLetters
from outrider.brokers.nats.liveness import Liveness
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError
from outrider.lifecycle import Openable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.brokers.nats.config import NatsConfig
    from outrider.ports import Delivery


class NatsSource(Openable):
    """Receives from a stream for a group.

    With `ordered`, one source of the group is active and the others stand by. When it closes, dies
    or hangs, one of them takes over, from the oldest unacknowledged event on. Without `ordered`,
    all sources share the messages, in no order. Dead letters go to the subject `dead_letters`, by
    default `<stream>_DLQ.<group>`, in the stream `<stream>_DLQ`, which is created at first use.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        stream: str = "EVENTS",
        *,
        group: str,
        subjects: str | Sequence[str] = (),
        ordered: bool = True,
        dead_letters: str | None = None,
        config: NatsConfig | None = None,
    ) -> None:
        self._cluster = Cluster(url, config)
        config = self._cluster.config
        subjects = [subjects] if isinstance(subjects, str) else list(subjects)
        self._dead_letters = DeadLetters(stream, group, dead_letters, config.replicas)
        check_names(
            {"stream": stream, "group": group},
            {"dead_letters": self._dead_letters.subject},
            subjects,
        )
        self._stream, self._group, self._ordered = stream, group, ordered
        self._consumers = Consumers(stream, group, subjects, config.ack_wait.total_seconds())
        self._liveness = Liveness(stream, group, config.takeover_after.total_seconds())
        self._opening = asyncio.Lock()
        self._changing = asyncio.Lock()
        """A successor takes over the record of a consumer, which must not change meanwhile."""
        self._connection: Connection | None = None
        self._active: ActiveConsumer | None = None
        self._own_consumer: str | None = None
        """The name of the last consumer that this source created."""
        self._closed = False

    def __repr__(self) -> str:
        return f"<NatsSource {self._cluster} stream {self._stream!r} group {self._group!r}>"

    async def open(self) -> None:
        """Connects, and checks the stream.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._closed = False
        await self._connected()

    async def close(self) -> None:
        """Unacknowledged events are delivered again. `open` makes the source usable again."""
        self._closed = True
        async with self._opening:
            active, self._active = self._active, None
            connection, self._connection = self._connection, None
            if active is not None:
                if self._ordered and connection is not None and not active.ended:
                    with suppress(*NATS_ERRORS):  # then the next source suspects too much
                        await self._consumers.mark_closed(connection, active.name)
                await active.stop(give_back=not self._ordered)
            if connection is not None:
                await connection.shut_down()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        connection = await self._connected()
        try:
            if self._active is None or self._active.ended:
                async with self._changing:
                    self._active = await self._activate(connection)
            return await self._active.receive(limit) if self._active else []
        except NATS_ERRORS as error:
            raise self._translate(error, connection) from error

    async def acknowledge(self, delivery: Delivery, /) -> None:
        if self._active is None or delivery.lost:
            return
        try:
            await self._active.acknowledge(delivery)
        except NATS_ERRORS as error:
            raise self._unavailable(error) from error

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        if self._connection is None or delivery.lost:
            return
        try:
            await self._dead_letters.write(self._connection, delivery.message, reason)
        except NATS_ERRORS as error:
            raise self._unavailable(error) from error
        await self.acknowledge(delivery)

    async def adjust_crash_count(self, delivery: Delivery, by: int = 1, /) -> None:
        sequence = delivery.message.metadata.sequence.stream
        connection = await self._connected()
        try:
            async with self._changing:
                adjust = self._consumers.adjust_crash_count(connection, sequence, by)
                delivery.crash_count = await adjust
        except NATS_ERRORS as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> BrokerUnavailable:
        """The delivery stays unacknowledged, so a permanent error is reported by `receive`."""
        return BrokerUnavailable(str(self._translate(error, self._connection)))

    def _translate(self, error: Exception, connection: Connection | None) -> OutriderError:
        denied = connection.permission_error if connection else None
        return translate(error, self._cluster, denied)

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
            await connection.shut_down()
            raise BrokerUnavailable(f"{self!r}: there is no such stream yet") from None
        except BaseException as error:
            await connection.shut_down()
            if isinstance(error, NATS_ERRORS):
                raise self._translate(error, connection) from error
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

    async def _activate(self, connection: Connection) -> ActiveConsumer | None:
        """Becomes the active source; None while another one is."""
        if self._active is not None:
            await self._active.stop(give_back=False)
        find = self._take_over if self._ordered else self._consumers.shared
        consumer = await find(connection)
        if consumer is None:
            return None
        # Sources that share a consumer cannot have what one of them has prefetched.
        prefetch = self._cluster.config.prefetch if self._ordered else 0
        active = ActiveConsumer(connection, self._stream, consumer, self._consumers, prefetch)
        connection.on_lost = active.end
        await active.start()
        return active

    async def _take_over(self, connection: Connection) -> Consumer | None:
        await self._liveness.stop_answering()
        newest = await self._consumers.newest(connection)
        is_own = newest in (None, self._own_consumer)
        if not is_own and not await self._liveness.is_free(connection):
            return None
        await self._liveness.start_answering(connection)
        consumer = await self._consumers.replace(connection, newest, died=not is_own)
        if consumer is None:
            await self._liveness.stop_answering()
        else:
            self._own_consumer = consumer.name
        return consumer
