"""The publisher: events into one stream, under subjects that end with the event type."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nats.js.api import StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError

from outrider.brokers.nats.batch import Batch
from outrider.brokers.nats.config import check_names, covers
from outrider.brokers.nats.connection import NATS_ERRORS, Cluster, Connection, translate
from outrider.brokers.nats.durability import check_durability, missing_stream
from outrider.brokers.nats.messages import MessageWriter
from outrider.brokers.nats.pipeline import Pipeline
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError
from outrider.lifecycle import Openable
from outrider.outcomes import raise_unless_accepted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outrider.brokers.nats.config import NatsConfig
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import CheckResult

_STREAM_EXISTS: Final = 10058


class NatsPublisher(Openable):
    """Publishes events to `<subject>.<event type>`, where one stream stores them.

    A missing stream is created. An existing stream is not changed, and must store those subjects.
    The publisher connects at the first call, and again at the first call after a lost connection.
    A call that is cancelled or times out drops the connection. Calls may overlap as long as no
    aggregate is in two of them.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        stream: str = "EVENTS",
        *,
        subject: str = "events",
        config: NatsConfig | None = None,
    ) -> None:
        check_names({"stream": stream}, {"subject": subject})
        self._cluster = Cluster(url, config)
        self._config = self._cluster.config
        self._stream, self._subject = stream, subject
        self._writer = MessageWriter(subject, self._config.cloudevents_source, self._config.sink)
        self._opening = asyncio.Lock()
        self._pipeline: Pipeline | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<NatsPublisher {self._cluster} stream {self._stream!r} subject {self._subject!r}>"

    async def open(self) -> None:
        """Connects, and checks or creates the stream.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._closed = False
        await self._opened()

    async def close(self) -> None:
        """Events in flight get the outcome Unknown. `open` makes the publisher usable again."""
        self._closed = True
        async with self._opening:
            pipeline, self._pipeline = self._pipeline, None
            if pipeline is not None:
                await pipeline.connection.shut_down()

    async def check_durability(self) -> list[CheckResult]:
        """Whether the stream is there, and keeps what it acknowledged; creates nothing."""
        connection = await self._cluster.connect()
        try:
            stream = await connection.js.stream_info(self._stream)
            self._check_settings(stream.config)
            return check_durability(stream)
        except NotFoundError:
            return [missing_stream(self._stream)]
        except NATS_ERRORS as error:
            raise self._translate(error, connection) from error
        finally:
            await connection.shut_down()

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        batch, limit = Batch(envelopes), self._config.publish_timeout
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await self._publish(batch)
        except TimeoutError:
            batch.fail(BrokerUnavailable(f"NATS at {self._cluster}: no answer within {limit}"))
        except OutriderError as error:
            batch.fail(error)
        raise_unless_accepted(batch.outcomes)

    async def _publish(self, batch: Batch) -> None:
        if batch.settled:
            return
        pipeline = await self._opened()
        try:
            await pipeline.send_all(batch)
        except NATS_ERRORS as error:
            raise self._translate(error, pipeline.connection) from error
        finally:
            if batch.in_flight:
                pipeline.connection.abort()

    async def _opened(self) -> Pipeline:
        async with self._opening:
            if self._closed:
                raise BrokerUnavailable(f"{self!r} was closed")
            if self._pipeline is None or self._pipeline.connection.lost:
                self._pipeline = await self._open()
            elif self._pipeline.must_check_stream:
                await self._check_stream(self._pipeline)
            return self._pipeline

    async def _open(self) -> Pipeline:
        connection = await self._cluster.connect()
        pipeline = Pipeline(connection, self._stream, self._writer)
        try:
            await pipeline.open()
            await self._check_stream(pipeline)
        except BaseException:
            await connection.shut_down()
            raise
        return pipeline

    async def _check_stream(self, pipeline: Pipeline) -> None:
        connection = pipeline.connection
        try:
            stream = await self._find_or_create(connection)
        except NATS_ERRORS as error:
            raise self._translate(error, connection) from error
        self._check_settings(stream)
        # Servers report "no limit" as -1 or 0.
        limits = (connection.max_payload, stream.max_msg_size, self._config.max_message_size)
        pipeline.max_size = min(limit for limit in limits if limit and limit > 0)
        pipeline.must_check_stream = False

    async def _find_or_create(self, connection: Connection) -> StreamConfig:
        try:
            return (await connection.js.stream_info(self._stream)).config
        except NotFoundError:
            wanted = StreamConfig(
                name=self._stream,
                subjects=[f"{self._subject}.>"],
                storage=StorageType.FILE,
                num_replicas=self._config.replicas,
                duplicate_window=self._config.duplicate_window.total_seconds(),
            )
        try:
            return (await connection.js.add_stream(wanted)).config
        except BadRequestError as error:
            if error.err_code != _STREAM_EXISTS:
                raise
            # Another client created it meanwhile, with other settings.
            return (await connection.js.stream_info(self._stream)).config

    def _check_settings(self, stream: StreamConfig) -> None:
        wanted, taken = f"{self._subject}.>", stream.subjects or []
        problems = []
        if not any(covers(pattern, wanted) for pattern in taken):
            problems.append(f"it takes {', '.join(taken) or 'no subjects'}, and not {wanted}")
        if stream.no_ack:
            problems.append("it acknowledges nothing: set no_ack to false")
        if stream.sealed:
            problems.append("it is sealed")
        if problems:
            why = "; ".join(problems)
            raise ConfigurationError(f"NATS at {self._cluster}: stream {self._stream}: {why}")

    def _translate(self, error: Exception, connection: Connection) -> OutriderError:
        return translate(error, self._cluster, connection.permission_error)
