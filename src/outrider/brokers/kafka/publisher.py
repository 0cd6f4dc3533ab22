"""The publisher: a run of records per partition, and the next one after its acknowledgement."""

from __future__ import annotations

import asyncio
from string import Formatter
from typing import TYPE_CHECKING, Final

from aiokafka import errors  # type: ignore[import-untyped]

from outrider.brokers.kafka.connection import Cluster, abort_producer, check_topic
from outrider.brokers.kafka.messages import Batch
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError
from outrider.lifecycle import Openable
from outrider.outcomes import ACCEPTED, HELD_BACK, Refused, Unknown, raise_unless_accepted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiokafka import AIOKafkaProducer

    from outrider.brokers.kafka.config import KafkaConfig
    from outrider.brokers.kafka.messages import Place
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import CheckResult

_FIELDS: Final = ("aggregate_type", "event_type")
_TOO_LARGE: Final = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)


class KafkaPublisher(Openable):
    """Sends events to a topic, with the aggregate's id as key.

    The topic may depend on the event: `shop.{aggregate_type}`, `{event_type}`, or a function. It
    opens with the first call, and again with the first call after one that failed, for then the
    client is ended: nothing that it still holds may be sent behind our back. Calls may overlap as
    long as no aggregate is in two of them.
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
        self._topic_of, self._fixed = _read(topic)
        self._known: set[str] = set()
        self._batch_bytes = self._config.batch_bytes
        self._sending: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None
        self._closed = False

    def __repr__(self) -> str:
        topic = self._topic if isinstance(self._topic, str) else "by event"
        return f"<KafkaPublisher {self._cluster} topic {topic!r}>"

    async def open(self) -> None:
        """Connect and look for the topic.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._closed = False
        await self._connected()

    async def close(self) -> None:
        """What is in flight becomes unknown; `open` makes the publisher usable again."""
        self._closed = True
        async with self._opening:
            if self._producer is not None:
                self._drop(self._producer)
        await self._cluster.ended()

    async def check_durability(self) -> list[CheckResult]:
        """What an acknowledgement is worth here."""
        return await self._cluster.check_durability(self._fixed)

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        batch, rest = Batch(envelopes), HELD_BACK
        limit = self._config.publish_timeout
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await self._deliver(batch)
        except TimeoutError:
            late = BrokerUnavailable(f"Kafka at {self._cluster}: no answer within {limit}")
            rest = Unknown(str(late), late)
        except OutriderError as error:
            rest = Unknown(str(error), error)
        raise_unless_accepted([outcome or rest for outcome in batch.outcomes])

    async def _deliver(self, batch: Batch) -> None:
        if not batch.envelopes:
            return
        producer = await self._connected()
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
            limit=self._config.max_message_size,
            source=self._config.source,
        )

    async def _send_all(self, producer: AIOKafkaProducer, batch: Batch) -> None:
        sending = [asyncio.create_task(self._send(producer, batch, place)) for place in batch.runs]
        self._sending.update(sending)
        try:
            # One partition's error is none of the others', so each comes to its own end.
            ends = await asyncio.gather(*sending, return_exceptions=True)
        finally:
            self._sending.difference_update(sending)
        if failure := next(filter(None, ends), None):
            if isinstance(failure, asyncio.CancelledError):
                raise BrokerUnavailable(f"Kafka at {self._cluster}: another call was given up")
            with self._cluster.translating():
                raise failure

    async def _send(self, producer: AIOKafkaProducer, batch: Batch, place: Place) -> None:
        """Run by run: a later one must not overtake one that fails."""
        topic, partition = place
        for run in batch.runs[place]:
            try:
                await (await producer.send_batch(run.records, topic, partition=partition))
            except _TOO_LARGE as error:
                if len(run.indexes) == 1:
                    reason = f"too large for topic {topic}: {type(error).__name__}"
                    batch.outcomes[run.indexes[0]] = Refused(reason)
                else:
                    self._batch_bytes = max(1, run.records.size() // 2)
                raise
            for index in run.indexes:
                batch.outcomes[index] = ACCEPTED

    async def _partitions(self, producer: AIOKafkaProducer, topic: str) -> int | str:
        """How many the topic has; or, if it is only that of some events, why it has none."""
        try:
            with self._cluster.translating():
                if topic not in self._known:
                    await self._cluster.ensure([check_topic(topic)])
                    self._known.add(topic)
                return len(await producer.partitions_for(topic))
        except ConfigurationError as error:
            if topic in self._fixed:
                raise
            return str(error)

    async def _connected(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._closed:
                raise BrokerUnavailable(f"{self!r} was closed")
            if self._producer is None:
                self._producer = await self._cluster.producer(self._fixed, self._batch_bytes)
                self._known = set(self._fixed)
            return self._producer

    def _drop(self, producer: AIOKafkaProducer) -> None:
        """After a failure nobody can tell what it would still send, and when."""
        if self._producer is producer:
            self._producer = None
            for task in self._sending:
                task.cancel()
            self._cluster.end(abort_producer(producer))


def _read(
    topic: str | Callable[[EventEnvelope], str],
) -> tuple[Callable[[EventEnvelope], str], tuple[str, ...]]:
    """How to find an event's topic, and the topic itself if it is always the same."""
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
