"""The source: a member of a consumer group that commits what is acknowledged without a gap."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiokafka import (  # type: ignore[import-untyped]
    AIOKafkaConsumer,
    ConsumerRebalanceListener,
    TopicPartition,
    errors,
)
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (  # type: ignore[import-untyped]
    StickyPartitionAssignor,
)

from outrider.brokers.kafka.connection import Cluster, abort_producer, check_topic
from outrider.brokers.kafka.messages import to_envelope
from outrider.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DecodeError,
    InvalidEvent,
    OutriderError,
)
from outrider.lifecycle import Openable
from outrider.ports import Delivery

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aiokafka import AIOKafkaProducer, ConsumerRecord

    from outrider.brokers.kafka.config import KafkaConfig

    Found = Mapping[TopicPartition, Sequence[ConsumerRecord]]

_WAIT: Final = 1.0
_NEVER: Final = 2**31 - 1
_LOOK_AGAIN: Final = 30_000
"""Milliseconds until new partitions are noticed."""
_MOST_REASON: Final = 1000


class KafkaSource(Openable):
    """Receives from the partitions that the group gives to it.

    A partition belongs to one source at a time, so several of one group share the work and every
    aggregate keeps its order. When the group changes, what is in hand is lost and comes again from
    the last commit on. That is the oldest event not acknowledged, so some that were acknowledged
    behind it come again too.
    """

    def __init__(
        self,
        url: str,
        topic: str | Sequence[str],
        *,
        group: str,
        dead_letter_topic: str | None = None,
        config: KafkaConfig | None = None,
    ) -> None:
        self._cluster = Cluster(url, config)
        self._config = self._cluster.config
        self._group = group
        topics = [topic] if isinstance(topic, str) else topic
        self._dead = {check_topic(t): check_topic(dead_letter_topic or f"{t}.dlq") for t in topics}
        if not group or not topics or set(self._dead) & set(self._dead.values()):
            raise ConfigurationError(
                "KafkaSource: it needs a group, a topic, and another topic for dead letters"
            )
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._opening, self._committing = asyncio.Lock(), asyncio.Lock()
        self._next_commit = 0.0
        self._consumer: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<KafkaSource {self._cluster} topic {', '.join(self._dead)} group {self._group!r}>"

    async def open(self) -> None:
        """Connect, look for the topics and begin to join the group."""
        self._closed = False
        await self._connected()

    async def close(self) -> None:
        """Commit and leave the group, so that others get the partitions at once."""
        self._closed = True
        async with self._opening:
            if self._consumer is not None:
                with suppress(OutriderError):
                    await self._commit(self._consumer)
                self._drop(self._consumer)
            self._end_writer()
        await self._cluster.ended()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        consumer = await self._connected()
        await self._commit(consumer)
        found = await self._fetch(consumer, limit)
        if not found:
            await self._probe(consumer)
        return [self._take(record) for records in found.values() for record in records]

    async def acknowledge(self, delivery: Delivery, /) -> None:
        """Committed soon, with others."""
        if delivery.lost:
            return
        record = delivery.message
        if partition := self._partitions.get(_place(record)):
            partition.in_hand.pop(record.offset, None)
        if self._consumer is not None and self._commit_is_due:
            # What no waiting cures is for `receive` to say, which ends the consumer.
            with suppress(ConfigurationError):
                await self._commit(self._consumer)

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        """Copied as it is, with the headers `dead-letter-reason` and `dead-letter-origin`."""
        if delivery.lost:
            return
        try:
            await self._bring(delivery.message, reason[:_MOST_REASON])
        except ConfigurationError as error:
            raise BrokerUnavailable(str(error)) from error
        await self.acknowledge(delivery)

    async def _connected(self) -> AIOKafkaConsumer:
        async with self._opening:
            if self._closed:
                raise BrokerUnavailable(f"{self!r} was closed")
            if self._consumer is None:
                self._consumer = await self._connect()
            return self._consumer

    async def _connect(self) -> AIOKafkaConsumer:
        await self._cluster.ensure({*self._dead, *self._dead.values()})
        session = self._config.session_timeout.total_seconds()
        consumer = AIOKafkaConsumer(
            # Joining a group is answered when all members have come, or their sessions are over.
            **self._cluster.client(session + self._cluster.patience),
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=int(session * 1000),
            heartbeat_interval_ms=int(session * 100),
            # A consumer whose hands are full is no reason to give its partitions to another one.
            max_poll_interval_ms=_NEVER,
            metadata_max_age_ms=_LOOK_AGAIN,
            # aiokafka keeps what it remembers in the class, which two sources must not share.
            partition_assignment_strategy=[type("Sticky", (StickyPartitionAssignor,), {})],
        )
        await self._cluster.start(consumer)
        consumer.subscribe(list(self._dead), listener=_Changes(self, consumer))
        return consumer

    async def _fetch(self, consumer: AIOKafkaConsumer, limit: int) -> Found:
        try:
            # While the group changes, aiokafka waits for the end of that, however long it takes.
            async with asyncio.timeout(2 * _WAIT):
                with self._cluster.translating():
                    wait = int(_WAIT * 1000)
                    found: Found = await consumer.getmany(timeout_ms=wait, max_records=limit)
                    return found
        except OutriderError:
            self._drop(consumer)
            raise
        except TimeoutError:
            return {}

    async def _probe(self, consumer: AIOKafkaConsumer) -> None:
        """Ask for something small: aiokafka keeps it to itself that it reaches nobody."""
        if some := list(consumer.assignment())[:1]:
            with self._cluster.translating():
                async with asyncio.timeout(self._cluster.patience):
                    await consumer.end_offsets(some)

    def _take(self, record: ConsumerRecord) -> Delivery:
        partition = self._partitions.setdefault(_place(record), _Partition(record.offset))
        delivery = _delivery(record)
        partition.in_hand[record.offset] = delivery
        partition.end = record.offset + 1
        return delivery

    @property
    def _commit_is_due(self) -> bool:
        if not self._config.commit_interval:
            return True
        return time.monotonic() >= self._next_commit and not self._committing.locked()

    async def _commit(self, consumer: AIOKafkaConsumer) -> None:
        async with self._committing:
            self._next_commit = time.monotonic() + self._config.commit_interval.total_seconds()
            due = [(place, p, p.watermark) for place, p in self._partitions.items() if p.has_moved]
            if not due:
                return
            with self._cluster.translating():
                try:
                    async with asyncio.timeout(self._cluster.patience):
                        await consumer.commit({place: offset for place, _, offset in due})
                except (errors.CommitFailedError, errors.IllegalStateError):
                    return  # the group changes, and all that is in hand is about to be lost
            for _, partition, offset in due:
                partition.committed = offset

    async def _bring(self, record: ConsumerRecord, reason: str) -> None:
        """Copy it to the dead letters, and wait until it is stored."""
        origin = f"{record.topic}/{record.partition}/{record.offset}"
        headers = [
            *record.headers,
            ("dead-letter-reason", reason.encode(errors="replace")),
            ("dead-letter-origin", origin.encode()),
        ]
        to = self._dead[record.topic]
        with self._cluster.translating():
            try:
                async with asyncio.timeout(self._config.publish_timeout.total_seconds()):
                    writer = await self._writer()
                    await writer.send_and_wait(to, record.value or b"", record.key, headers=headers)
            except BaseException:
                self._end_writer()
                raise

    async def _writer(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                self._producer = await self._cluster.producer((), self._config.batch_bytes)
            return self._producer

    def _end_writer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            self._cluster.end(abort_producer(producer))

    def _drop(self, consumer: AIOKafkaConsumer) -> None:
        if self._consumer == consumer:
            self._consumer = None
            self._lose()
            self._cluster.end(_leave(consumer))

    def _lose(self) -> None:
        for partition in self._partitions.values():
            for delivery in partition.in_hand.values():
                delivery.lost = True
        self._partitions.clear()


class _Partition:
    """What is in hand of a partition, the oldest first."""

    def __init__(self, start: int) -> None:
        self.in_hand: dict[int, Delivery] = {}
        self.end = self.committed = start

    @property
    def watermark(self) -> int:
        """Where a reader has to go on after us."""
        return next(iter(self.in_hand), self.end)

    @property
    def has_moved(self) -> bool:
        return self.watermark != self.committed


class _Changes(ConsumerRebalanceListener):  # type: ignore[misc]
    """The group takes all partitions back before it gives them out anew."""

    def __init__(self, source: KafkaSource, consumer: AIOKafkaConsumer) -> None:
        self._source, self._consumer = source, consumer

    async def on_partitions_revoked(self, _: Collection[TopicPartition]) -> None:
        with suppress(OutriderError):
            await self._source._commit(self._consumer)
        self._source._lose()

    async def on_partitions_assigned(self, _: Collection[TopicPartition]) -> None:
        # Something may have been received while the last commit was on its way.
        self._source._lose()


async def _leave(consumer: AIOKafkaConsumer) -> None:
    """`stop` breaks off when it meets a fetch that waits for its next try."""
    try:
        await consumer.stop()
    finally:
        await consumer._client.close()


def _place(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _delivery(record: ConsumerRecord) -> Delivery:
    try:
        envelope = to_envelope(record.headers, record.value or b"")
    except (DecodeError, InvalidEvent) as error:
        return Delivery(None, str(error), message=record)
    except UnicodeDecodeError:
        return Delivery(None, "a header is no valid Unicode text", message=record)
    return Delivery(envelope, message=record)
