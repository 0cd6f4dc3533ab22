"""The events of one publish call, packed into record batches by partition, and their outcomes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from aiokafka.partitioner import murmur2  # type: ignore[import-untyped]
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatchBuilder,
)

from outrider.brokers.kafka.messages import to_headers
from outrider.outcomes import HELD_BACK, Deferred, Outcome, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outrider.brokers.kafka.messages import Headers
    from outrider.events.envelope import EventEnvelope

    Partition = tuple[str, int]
    """A topic and the number of one of its partitions."""

_SIGN_BIT: Final = 0x7FFFFFFF


@lru_cache(maxsize=16_384)
def _hash(key: bytes) -> int:
    """The hash of Kafka's own clients, so that all producers agree on the partition of a key."""
    return int(murmur2(key)) & _SIGN_BIT


@dataclass(slots=True)
class RecordBatch:
    """Records for one partition; the broker stores all of them or none."""

    records: Any
    indexes: list[int] = field(default_factory=list)
    """Which events of the publish call these records are."""


class Batch:
    """The events of one publish call, and the outcome of each; None is not known yet."""

    def __init__(self, envelopes: Sequence[EventEnvelope]) -> None:
        self.envelopes = envelopes
        self.outcomes: list[Outcome | None] = [None] * len(envelopes)
        self.record_batches: dict[Partition, list[RecordBatch]] = {}
        # The partition of each aggregate in this call; None holds back its remaining events.
        self._partition_of: dict[tuple[str, str], Partition | None] = {}
        self._timestamp_ms = time.time_ns() // 1_000_000

    def pack(
        self,
        topics: Sequence[str],
        partitions: dict[str, int | Refused | Deferred],
        new_records: Callable[[], Any],
        *,
        max_message_size: int,
        cloudevents_source: str,
    ) -> None:
        """Assigns every event to its partition, or refuses it.

        `partitions` has the number of partitions of each topic, or the outcome of its events.
        """
        for index, envelope in enumerate(self.envelopes):
            topic = topics[index]
            count = partitions[topic]
            if not isinstance(count, int):
                self._not_accepted(index, count)
                continue
            try:
                key = envelope.aggregate_id.encode()
                headers = to_headers(envelope, cloudevents_source)
            except UnicodeEncodeError:
                self._refuse(index, "a header is no valid Unicode text")
                continue
            size = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, envelope.data, headers)
            if size > max_message_size:
                allowed = f"{max_message_size} are allowed"
                self._refuse(index, f"too large: {size} bytes with headers, {allowed}")
            else:
                self._add(index, (topic, _hash(key) % count), key, headers, new_records)

    def _refuse(self, index: int, reason: str) -> None:
        self._not_accepted(index, Refused(reason))

    def _not_accepted(self, index: int, outcome: Outcome) -> None:
        aggregate = self._aggregate(index)
        is_held_back = self._partition_of.get(aggregate, ()) is None
        self.outcomes[index] = HELD_BACK if is_held_back else outcome
        self._partition_of[aggregate] = None

    def _add(
        self,
        index: int,
        partition: Partition,
        key: bytes,
        headers: Headers,
        new_records: Callable[[], Any],
    ) -> None:
        aggregate = self._aggregate(index)
        if self._partition_of.setdefault(aggregate, partition) != partition:
            # One partition may fail while another succeeds, so an aggregate must use only one.
            self.outcomes[index] = HELD_BACK
            self._partition_of[aggregate] = None
            return
        batches, data = self.record_batches.setdefault(partition, []), self.envelopes[index].data
        record = {"key": key, "value": data, "headers": headers, "timestamp": self._timestamp_ms}
        if not batches or batches[-1].records.append(**record) is None:
            batches.append(RecordBatch(new_records()))
            batches[-1].records.append(**record)
        batches[-1].indexes.append(index)

    def _aggregate(self, index: int) -> tuple[str, str]:
        envelope = self.envelopes[index]
        return (envelope.aggregate_type, envelope.aggregate_id)
