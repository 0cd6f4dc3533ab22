"""The source: a member of a consumer group that commits up to the oldest unacknowledged event."""

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

from outrider.brokers.kafka.connection import Cluster, check_topic
from outrider.brokers.kafka.dead_letters import DeadLetters
from outrider.brokers.kafka.messages import to_delivery
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError
from outrider.lifecycle import Openable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aiokafka import ConsumerRecord

    from outrider.brokers.kafka.config import KafkaConfig
    from outrider.ports import Delivery

    Records = Mapping[TopicPartition, Sequence[ConsumerRecord]]

_FETCH_TIMEOUT_S: Final = 1.0
_MAX_POLL_INTERVAL_MS: Final = 2**31 - 1
_METADATA_MAX_AGE_MS: Final = 30_000
"""How long it takes at most to notice new partitions."""


class KafkaSource(Openable):
    """Receives from the partitions that the group assigns to it.

    A partition belongs to one source at a time, so the sources of a group share the work and every
    aggregate keeps its order. When the group rebalances, all unacknowledged deliveries are lost
    and delivered again from the last commit on. A commit ends at the oldest unacknowledged event,
    so acknowledged events behind it are delivered again too.
    """

    def __init__(
        self,
        url: str,
        topic: str | Sequence[str],
        *,
        group: str,
        dead_letters: str | None = None,
        config: KafkaConfig | None = None,
    ) -> None:
        self._cluster = Cluster(url, config)
        self._config = self._cluster.config
        self._group = group
        topics = [topic] if isinstance(topic, str) else topic
        # The topic of dead letters of each topic.
        self._topics = {check_topic(t): check_topic(dead_letters or f"{t}.dlq") for t in topics}
        if not group or not topics or set(self._topics) & set(self._topics.values()):
            raise ConfigurationError(
                "KafkaSource: it needs a group, a topic, and another topic for dead letters"
            )
        self._dead_letters = DeadLetters(self._cluster, self._topics, group)
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._opening, self._committing = asyncio.Lock(), asyncio.Lock()
        self._next_commit = 0.0
        self._consumer: AIOKafkaConsumer | None = None
        self._closed = False

    def __repr__(self) -> str:
        topics = ", ".join(self._topics)
        return f"<KafkaSource {self._cluster} topic {topics} group {self._group!r}>"

    async def open(self) -> None:
        """Connects, checks or creates the topics, and begins to join the group."""
        self._closed = False
        await self._connected()

    async def close(self) -> None:
        """Commits and leaves the group, so that other sources get the partitions at once."""
        self._closed = True
        async with self._opening:
            if self._consumer is not None:
                with suppress(OutriderError):
                    await self._commit(self._consumer)
                self._drop(self._consumer)
        await self._dead_letters.close()
        await self._cluster.wait_closed()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        consumer = await self._connected()
        await self._commit(consumer)
        found = await self._fetch(consumer, limit)
        if not found:
            await self._probe(consumer)
        return [self._deliver(record) for records in found.values() for record in records]

    async def acknowledge(self, delivery: Delivery, /) -> None:
        """The commit follows after `commit_interval`, together with others."""
        if delivery.lost:
            return
        record = delivery.message
        if partition := self._partitions.get(_partition_of(record)):
            partition.unacknowledged.pop(record.offset, None)
        if self._consumer is not None and self._commit_is_due:
            # `receive` commits too. It raises the ConfigurationError, which ends the EventConsumer.
            with suppress(ConfigurationError):
                await self._commit(self._consumer)

    async def dead_letter(self, delivery: Delivery, reason: str, /) -> None:
        if delivery.lost:
            return
        try:
            await self._dead_letters.write(delivery.message, reason)
        except ConfigurationError as error:
            raise BrokerUnavailable(str(error)) from error
        await self.acknowledge(delivery)

    async def adjust_crash_count(self, delivery: Delivery, by: int = 1, /) -> None:
        delivery.crash_count += by

    async def _connected(self) -> AIOKafkaConsumer:
        async with self._opening:
            if self._closed:
                raise BrokerUnavailable(f"{self!r} was closed")
            if self._consumer is None:
                self._consumer = await self._connect()
            return self._consumer

    async def _connect(self) -> AIOKafkaConsumer:
        await self._cluster.ensure_topics({*self._topics, *self._topics.values()})
        session_s = self._config.takeover_after.total_seconds()
        consumer = AIOKafkaConsumer(
            # The broker answers a join when all members have joined or their sessions ended.
            **self._cluster.client_arguments(session_s + self._cluster.connect_timeout_s),
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=int(session_s * 1000),
            heartbeat_interval_ms=int(session_s * 100),
            # A source that receives nothing because its consumer is busy keeps its partitions.
            max_poll_interval_ms=_MAX_POLL_INTERVAL_MS,
            metadata_max_age_ms=_METADATA_MAX_AGE_MS,
            # aiokafka stores the last assignment in the class, so each source needs its own class.
            partition_assignment_strategy=[type("Sticky", (StickyPartitionAssignor,), {})],
        )
        await self._cluster.start(consumer)
        consumer.subscribe(list(self._topics), listener=_RebalanceListener(self, consumer))
        return consumer

    async def _fetch(self, consumer: AIOKafkaConsumer, limit: int) -> Records:
        try:
            # During a rebalance `getmany` waits for its end, longer than its own timeout.
            async with asyncio.timeout(2 * _FETCH_TIMEOUT_S):
                with self._cluster.translating():
                    found: Records = await consumer.getmany(
                        timeout_ms=int(_FETCH_TIMEOUT_S * 1000), max_records=limit
                    )
                    return found
        except OutriderError:
            self._drop(consumer)
            raise
        except TimeoutError:
            return {}

    async def _probe(self, consumer: AIOKafkaConsumer) -> None:
        """Sends a small request: `getmany` returns nothing, without an error, in an outage."""
        if some := list(consumer.assignment())[:1]:
            with self._cluster.translating():
                async with asyncio.timeout(self._cluster.connect_timeout_s):
                    await consumer.end_offsets(some)

    def _deliver(self, record: ConsumerRecord) -> Delivery:
        key = _partition_of(record)
        partition = self._partitions.setdefault(key, _Partition(record.offset))
        delivery = to_delivery(record)
        partition.unacknowledged[record.offset] = delivery
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
            due = [(key, p, p.next_offset) for key, p in self._partitions.items() if p.has_moved]
            if not due:
                return
            with self._cluster.translating():
                try:
                    async with asyncio.timeout(self._cluster.connect_timeout_s):
                        await consumer.commit({key: offset for key, _, offset in due})
                except (errors.CommitFailedError, errors.IllegalStateError):
                    return  # The group rebalances, which loses all unacknowledged deliveries.
            for _, partition, offset in due:
                partition.committed = offset

    def _drop(self, consumer: AIOKafkaConsumer) -> None:
        if self._consumer == consumer:
            self._consumer = None
            self._lose_deliveries()
            self._cluster.close_in_background(_stop(consumer))

    def _lose_deliveries(self) -> None:
        for partition in self._partitions.values():
            for delivery in partition.unacknowledged.values():
                delivery.lost = True
        self._partitions.clear()


class _Partition:
    """The deliveries of one partition that are not acknowledged, the oldest first."""

    def __init__(self, start: int) -> None:
        self.unacknowledged: dict[int, Delivery] = {}
        self.end = self.committed = start

    @property
    def next_offset(self) -> int:
        """The low-water mark: where another source would continue."""
        return next(iter(self.unacknowledged), self.end)

    @property
    def has_moved(self) -> bool:
        return self.next_offset != self.committed


class _RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]
    """In a rebalance the group revokes all partitions before it assigns them again."""

    def __init__(self, source: KafkaSource, consumer: AIOKafkaConsumer) -> None:
        self._source, self._consumer = source, consumer

    async def on_partitions_revoked(self, _: Collection[TopicPartition]) -> None:
        with suppress(OutriderError):
            await self._source._commit(self._consumer)
        self._source._lose_deliveries()

    async def on_partitions_assigned(self, _: Collection[TopicPartition]) -> None:
        # Something may have been received while the last commit was in flight.
        self._source._lose_deliveries()


async def _stop(consumer: AIOKafkaConsumer) -> None:
    try:
        await consumer.stop()
    finally:
        # _client: `stop` raises if a fetch waits for its next attempt, and leaves it open then.
        await consumer._client.close()


def _partition_of(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
