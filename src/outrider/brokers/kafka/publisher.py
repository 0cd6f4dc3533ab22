"""The publisher: per partition one record batch at a time, the next after its acknowledgement."""

from __future__ import annotations

import asyncio
from string import Formatter
from typing import TYPE_CHECKING, Final, cast

from aiokafka import errors  # type: ignore[import-untyped]

from outrider.brokers.kafka.batch import Batch
from outrider.brokers.kafka.connection import Cluster, abort_producer, check_topic
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError
from outrider.lifecycle import Openable
from outrider.outcomes import (
    ACCEPTED,
    HELD_BACK,
    Deferred,
    Outcome,
    Refused,
    Unknown,
    raise_unless_accepted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiokafka import AIOKafkaProducer

    from outrider.brokers.kafka.batch import Partition
    from outrider.brokers.kafka.config import KafkaConfig
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import CheckResult

_FIELDS: Final = ("aggregate_type", "event_type")
_TOO_LARGE: Final = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)


class KafkaPublisher(Openable):
    """Publishes events to a topic, with the aggregate's id as the key.

    The topic may depend on the event: `shop.{aggregate_type}`, `{event_type}`, or a function. The
    publisher connects at the first call. After a failed call it drops its producer, so that
    nothing is sent later without its knowledge, and the next call connects again. Calls may
    overlap as long as no aggregate is in two of them.
    """

    def __init__(
        self,
        url: str,
        topic: str | Callable[[EventEnvelope], str] = "events",
        *,
        config: KafkaConfig | None = None,
    ) -> None:
        self._cluster = Cluster(url, config)
        self._config = self._cluster.config
        self._topic = topic
        self._topic_of, self._fixed_topics = _parse_topic(topic)
        self._checked_topics: set[str] = set()
        self._batch_bytes = self._config.batch_bytes
        self._sending: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None
        self._closed = False

    def __repr__(self) -> str:
        topic = self._topic if isinstance(self._topic, str) else "by event"
        return f"<KafkaPublisher {self._cluster} topic {topic!r}>"

    async def open(self) -> None:
        """Connects, and checks or creates the topic.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._closed = False
        await self._opened()

    async def close(self) -> None:
        """Events in flight get the outcome Unknown. `open` makes the publisher usable again."""
        self._closed = True
        async with self._opening:
            if self._producer is not None:
                self._drop(self._producer)
        await self._cluster.wait_closed()

    async def check_durability(self) -> list[CheckResult]:
        return await self._cluster.check_durability(self._fixed_topics)

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        batch, rest = Batch(envelopes), cast("Outcome", HELD_BACK)
        limit = self._config.publish_timeout
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await self._publish(batch)
        except TimeoutError:
            late = BrokerUnavailable(f"Kafka at {self._cluster}: no answer within {limit}")
            # If other partitions took theirs, these may lack replicas or a leader: they wait apart.
            kind = Deferred if ACCEPTED in batch.outcomes else Unknown
            rest = kind(str(late), late)
        except OutriderError as error:
            rest = Unknown(str(error), error)
        raise_unless_accepted([outcome or rest for outcome in batch.outcomes])

    async def _publish(self, batch: Batch) -> None:
        if not batch.envelopes:
            return
        producer = await self._opened()
        try:
            await self._pack(producer, batch)
            await self._send_all(producer, batch)
        except BaseException:
            self._drop(producer)
            raise

    async def _pack(self, producer: AIOKafkaProducer, batch: Batch) -> None:
        topics = [self._topic_of(envelope) for envelope in batch.envelopes]
        batch.pack(
            topics,
            {topic: await self._partitions(producer, topic) for topic in set(topics)},
            producer.create_batch,
            max_message_size=self._config.max_message_size,
            cloudevents_source=self._config.cloudevents_source,
        )

    async def _send_all(self, producer: AIOKafkaProducer, batch: Batch) -> None:
        sending = [
            asyncio.create_task(self._send(producer, batch, partition))
            for partition in batch.record_batches
        ]
        self._sending.update(sending)
        try:
            # Partitions are independent: an error of one does not stop the others.
            results = await asyncio.gather(*sending, return_exceptions=True)
        finally:
            self._sending.difference_update(sending)
        if failure := next(filter(None, results), None):
            if isinstance(failure, asyncio.CancelledError):
                raise BrokerUnavailable(f"Kafka at {self._cluster}: another call was given up")
            with self._cluster.translating():
                raise failure

    async def _send(self, producer: AIOKafkaProducer, batch: Batch, partition: Partition) -> None:
        """Sends record batches one after the other: a later one must not overtake a failed one."""
        topic, number = partition
        for part in batch.record_batches[partition]:
            try:
                await (await producer.send_batch(part.records, topic, partition=number))
            except _TOO_LARGE as error:
                if len(part.indexes) == 1:
                    reason = f"too large for topic {topic}: {type(error).__name__}"
                    batch.outcomes[part.indexes[0]] = Refused(reason)
                else:
                    self._batch_bytes = max(1, part.records.size() // 2)
                raise
            for index in part.indexes:
                batch.outcomes[index] = ACCEPTED

    async def _partitions(self, producer: AIOKafkaProducer, topic: str) -> int | Refused | Deferred:
        """How many partitions the topic has, or the outcome of its events.

        Raises ConfigurationError instead if the topic is the same for all events.
        """
        try:
            check_topic(topic)
        except ConfigurationError as error:
            return Refused(str(error))
        try:
            with self._cluster.translating():
                if topic not in self._checked_topics:
                    await self._cluster.ensure_topics([topic])
                    self._checked_topics.add(topic)
                return len(await producer.partitions_for(topic))
        except ConfigurationError as error:
            if topic in self._fixed_topics:
                raise
            return Deferred(str(error), error)

    async def _opened(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._closed:
                raise BrokerUnavailable(f"{self!r} was closed")
            if self._producer is None:
                start = self._cluster.start_producer(self._fixed_topics, self._batch_bytes)
                self._producer = await start
                self._checked_topics = set(self._fixed_topics)
            return self._producer

    def _drop(self, producer: AIOKafkaProducer) -> None:
        """Nobody can tell what a producer sends after a failure, and when; so it is aborted."""
        if self._producer is producer:
            self._producer = None
            for task in self._sending:
                task.cancel()
            self._cluster.close_in_background(abort_producer(producer))


def _parse_topic(
    topic: str | Callable[[EventEnvelope], str],
) -> tuple[Callable[[EventEnvelope], str], tuple[str, ...]]:
    """A function that gives an event's topic; and the topic, if all events have the same."""
    if not isinstance(topic, str):
        return topic, ()
    try:
        fields = {name for _, name, _, _ in Formatter().parse(topic) if name is not None}
        check_topic(topic.format(**dict.fromkeys(_FIELDS, "x")))
    except (ValueError, LookupError, AttributeError):
        raise ConfigurationError(
            f"topic {topic!r}: only {', '.join(_FIELDS)} may be in it"
        ) from None
    if not fields:
        return (lambda _: topic), (topic,)
    return (lambda e: topic.format(aggregate_type=e.aggregate_type, event_type=e.event_type)), ()
