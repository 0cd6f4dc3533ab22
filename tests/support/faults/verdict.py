"""The verdict on a run: what was lost, unexpected, reordered, doubled, stuck or wrongly failed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple
from uuid import UUID

from tests.support.faults.queue_reader import Delivery
from tests.support.faults.writers import Writers


class Row(NamedTuple):
    """The row of an event in the outbox."""

    id: UUID
    aggregate: str
    payload: str
    status: str
    retry_count: int

    @property
    def n(self) -> int:
        return int(json.loads(self.payload)["n"])


@dataclass(frozen=True, kw_only=True)
class Verdict:
    events: int
    duplicates: int
    lost: int
    """Committed, but not in the queue."""
    unexpected: int
    """In the queue or the outbox, but not committed."""
    reordered: int
    """Aggregates whose first deliveries came in the wrong order."""
    misnumbered: int
    """Aggregates whose rows are not in the order of their transactions, or not all there."""
    stuck: int
    failed: int
    retried: int
    """Events with a counted attempt."""

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name)}" for field in fields(self))

    def holds(self, *, duplicates: int = 0) -> bool:
        """Whether all promises were kept, with at most this number of duplicates."""
        wrong = {field.name for field in fields(self)} - {"events", "duplicates"}
        return self.duplicates <= duplicates and not any(getattr(self, name) for name in wrong)


def judge(
    rows: Sequence[Row],
    versions: Mapping[str, int],
    writers: Writers,
    deliveries: Sequence[Delivery],
) -> Verdict:
    recorded = {row.id for row in rows}
    first = {delivery.id: delivery for delivery in reversed(deliveries)}
    return Verdict(
        events=len(rows),
        duplicates=len(deliveries) - len(first),
        lost=len((recorded | writers.committed) - first.keys()),
        unexpected=len(first.keys() - recorded) + len(recorded & writers.undone),
        reordered=len(_out_of_order(_in_order_of_arrival(deliveries))),
        misnumbered=len(_misnumbered(rows, versions)),
        stuck=sum(row.status == "pending" for row in rows),
        failed=sum(row.status == "failed" for row in rows),
        retried=sum(row.retry_count > 0 for row in rows),
    )


def _in_order_of_arrival(deliveries: Sequence[Delivery]) -> dict[str, list[int]]:
    """The numbers of each aggregate, without duplicates."""
    seen: set[UUID] = set()
    numbers = defaultdict(list)
    for delivery in deliveries:
        if delivery.id not in seen:
            seen.add(delivery.id)
            numbers[delivery.aggregate].append(delivery.n)
    return numbers


def _out_of_order(numbers: Mapping[str, Sequence[int]]) -> list[str]:
    return [a for a, seen in numbers.items() if list(seen) != list(range(1, len(seen) + 1))]


def _misnumbered(rows: Sequence[Row], versions: Mapping[str, int]) -> list[str]:
    numbers = defaultdict(list)
    for row in rows:
        numbers[row.aggregate].append(row.n)
    return [a for a, version in versions.items() if numbers[a] != list(range(1, version + 1))]
