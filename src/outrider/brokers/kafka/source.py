"""The source: a member of a consumer group that commits up to the oldest unacknowledged event."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

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
from outrider.brokers.kafka.partitions import Partition
from outrider.brokers.kafka.positions import Position, Range, ranges, resume
from outrider.brokers.kafka.topic_ids import topic_ids
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError
from outrider.lifecycle import Openable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aiokafka import ConsumerRecord

    from outrider.brokers.kafka.config import KafkaConfig
    from outrider.consumer.losses import Loss
    from outrider.ports import Delivery

    Records = Mapping[TopicPartition, Sequence[ConsumerRecord]]

_FETCH_TIMEOUT_S: Final = 1.0
_MAX_POLL_INTERVAL_MS: Final = 2**31 - 1
_METADATA_MAX_AGE_MS: Final = 30_000
"""How long it takes at most to notice new partitions."""
_TOPIC_CHECK_INTERVAL_S: Final = 5.0
"""How long it takes at most to notice that a topic was deleted and created again."""


class KafkaSource(Openable):
    """Receives from the partitions that the group assigns to it.

    A partition belongs to one source at a time, so the sources of a group share the work and every
    aggregate keeps its order. When the group rebalances, all unacknowledged deliveries are lost
    and delivered again from the last commit on. A commit ends at the oldest unacknowledged event,
    so acknowledged events behind it are delivered again too.

    The metadata of a commit names the source that has the partition. If that source did not release
    it, its process died, and the next records are suspects.
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
        self._assignment: frozenset[TopicPartition] | None = None
        """None while the group rebalances."""
        self._partitions: dict[TopicPartition, Partition] = {}
        """Those of the assignment from which this source receives."""
        self._left: dict[TopicPartition, Position] = {}
        """Where this source left partitions that it had before."""
        self._own_crashes = defaultdict[TopicPartition, Counter[int]](Counter)
        self._me = uuid4().hex
        self._losses: list[Loss] = []
        self._opening, self._committing = asyncio.Lock(), asyncio.Lock()
        self._next_commit = self._next_topic_check = 0.0
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
                    await self._commit(self._consumer, release=True)
                self._drop(self._consumer)
        await self._dead_letters.close()
        await self._cluster.wait_closed()

    async def receive(self, limit: int, /) -> Sequence[Delivery]:
        consumer = await self._connected()
        await self._check_topics(consumer)
        await self._resume(consumer, limit)
        await self._commit(consumer)
        found = await self._fetch(consumer, limit)
        if not found:
            await self._probe(consumer)
        # Partitions that were assigned meanwhile are not resumed yet.
        return [
            self._partitions[place].deliver(record)
            for place, records in found.items()
            for record in records
            if place in self._partitions
        ]

    def take_losses(self) -> list[Loss]:
        losses, self._losses = self._losses, []
        return losses

    async def acknowledge(self, delivery: Delivery, /) -> None:
        """The commit follows after `commit_interval`, together with others."""
        if delivery.lost:
            return
        record = delivery.message
        if partition := self._partitions.get(_partition_of(record)):
            partition.acknowledge(record.offset)
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
        """Commits the count. The count of a lost delivery stays here, and is not committed."""
        place, offset = _partition_of(delivery.message), delivery.message.offset
        self._own_crashes[place][offset] += by
        try:
            if not delivery.lost and not await self._commit(await self._connected()):
                raise BrokerUnavailable(f"{self!r}: the group rebalances")
        except OutriderError as error:
            self._own_crashes[place][offset] -= by
            raise BrokerUnavailable(str(error)) from error
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
            auto_offset_reset="none",  # aiokafka would not tell what is lost
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
                    return await self._getmany(consumer, limit)
        except OutriderError:
            self._drop(consumer)
            raise
        except TimeoutError:
            return {}

    async def _getmany(self, consumer: AIOKafkaConsumer, limit: int) -> Records:
        try:
            found: Records = await consumer.getmany(
                timeout_ms=int(_FETCH_TIMEOUT_S * 1000), max_records=limit
            )
        except errors.NoOffsetForPartitionError:
            return {}  # A new group; `_resume` sets its positions.
        except errors.OffsetOutOfRangeError as error:
            for place, offset in error.args[0].items():
                await self._skip(consumer, place, offset)
            return {}
        return found

    async def _probe(self, consumer: AIOKafkaConsumer) -> None:
        """Sends a small request: `getmany` returns nothing, without an error, in an outage."""
        if some := list(consumer.assignment())[:1]:
            with self._cluster.translating():
                async with asyncio.timeout(self._cluster.connect_timeout_s):
                    await consumer.end_offsets(some)

    async def _check_topics(self, consumer: AIOKafkaConsumer) -> None:
        """Leaves the partitions of topics that were created again."""
        if time.monotonic() < self._next_topic_check or not self._partitions:
            return
        with self._cluster.translating():
            async with asyncio.timeout(self._cluster.connect_timeout_s):
                ids = await topic_ids(consumer._client, self._topics)
        self._next_topic_check = time.monotonic() + _TOPIC_CHECK_INTERVAL_S
        for place, partition in list(self._partitions.items()):
            if partition.position.is_of_another_topic(ids.get(place.topic, "")):
                self._drop_partition(place)

    async def _resume(self, consumer: AIOKafkaConsumer, limit: int) -> None:
        """Sets the positions of new partitions, before anything is received from them.

        aiokafka has no public call that returns the metadata of a commit, hence `_coordinator`.
        """
        assignment = self._assignment
        if not assignment or not (new := assignment - self._partitions.keys()):
            return
        with self._cluster.translating():
            async with asyncio.timeout(self._cluster.connect_timeout_s):
                committed = await consumer._coordinator.fetch_committed_offsets(list(new))
                found = await ranges(consumer, new)
        if self._assignment is not assignment:
            return
        for place in new:
            left = self._left.get(place)
            position = Position.parse(*committed[place]) if place in committed else None
            if left is not None and left.is_of_another_topic(found[place].topic_id):
                position = left  # Kafka deletes the commits of a topic that is deleted.
            start = self._start(position, found[place], limit, self._own_crashes[place])
            self._partitions[place] = Partition(start, self._own_crashes[place])
            consumer.seek(place, start.offset)

    def _start(
        self, position: Position | None, found: Range, limit: int, own_crashes: Counter[int]
    ) -> Position:
        """The position to begin with, with this source as its owner."""
        start = Position(offset=found.beginning, owner=self._me, topic_id=found.topic_id)
        if position is None:
            return start
        offset, loss = resume(position, found)
        if loss is not None:
            self._losses.append(loss)
            return replace(start, offset=offset)
        crashes, first_innocent = dict(position.crashes), position.first_innocent
        if position.owner == self._me:
            crashes = {at: count - own_crashes[at] for at, count in crashes.items()}
        elif position.owner:
            # Its process died. After this commit it received once more at most, and no record that
            # was not there yet.
            received = max(offset, position.end) + limit
            first_innocent = max(first_innocent, min(found.end, received))
        return replace(start, offset=offset, crashes=crashes, first_innocent=first_innocent)

    async def _skip(self, consumer: AIOKafkaConsumer, place: TopicPartition, offset: int) -> None:
        """The partition does not have this offset, from which it was to be read."""
        partition = self._partitions.get(place)
        if partition is None or await consumer.position(place) != offset:
            return
        found = (await ranges(consumer, {place}))[place]
        start, loss = resume(replace(partition.position, offset=offset), found)
        if loss is None or start < offset:
            self._drop_partition(place)
            return
        self._losses.append(loss)
        partition.skip_to(start)
        consumer.seek(place, start)

    @property
    def _commit_is_due(self) -> bool:
        if not self._config.commit_interval:
            return True
        return time.monotonic() >= self._next_commit and not self._committing.locked()

    async def _commit(self, consumer: AIOKafkaConsumer, *, release: bool = False) -> bool:
        """False if the group rebalances, which loses all unacknowledged deliveries."""
        async with self._committing:
            self._next_commit = time.monotonic() + self._config.commit_interval.total_seconds()
            due = {
                place: (partition, position)
                for place, partition in self._partitions.items()
                if (position := partition.released_position if release else partition.position)
                != partition.committed
            }
            if not due:
                return True
            offsets = {place: (found.offset, found.metadata) for place, (_, found) in due.items()}
            with self._cluster.translating():
                try:
                    async with asyncio.timeout(self._cluster.connect_timeout_s):
                        await consumer.commit(offsets)
                except (errors.CommitFailedError, errors.IllegalStateError):
                    return False
            for partition, position in due.values():
                partition.committed = position
            return True

    def _drop(self, consumer: AIOKafkaConsumer) -> None:
        if self._consumer == consumer:
            self._consumer = self._assignment = None
            self._drop_partitions()
            self._cluster.close_in_background(_stop(consumer))

    def _drop_partitions(self) -> None:
        for place in list(self._partitions):
            self._drop_partition(place)

    def _drop_partition(self, place: TopicPartition) -> None:
        partition = self._partitions.pop(place)
        partition.lose_deliveries()
        self._left[place] = partition.released_position


class _RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]
    """In a rebalance the group revokes all partitions before it assigns them again."""

    def __init__(self, source: KafkaSource, consumer: AIOKafkaConsumer) -> None:
        self._source, self._consumer = source, consumer

    async def on_partitions_revoked(self, _: Collection[TopicPartition]) -> None:
        with suppress(OutriderError):
            await self._source._commit(self._consumer, release=True)
        self._set(None)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._set(frozenset(assigned))

    def _set(self, assignment: frozenset[TopicPartition] | None) -> None:
        if self._source._consumer is self._consumer:  # else it is being closed
            self._source._drop_partitions()
            self._source._assignment = assignment


async def _stop(consumer: AIOKafkaConsumer) -> None:
    try:
        await consumer.stop()
    finally:
        # _client: `stop` raises if a fetch waits for its next attempt, and leaves it open then.
        await consumer._client.close()


def _partition_of(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
