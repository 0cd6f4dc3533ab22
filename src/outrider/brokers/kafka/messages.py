"""Events as Kafka's records, and back; and those of one call, packed by partition."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from aiokafka.partitioner import murmur2  # type: ignore[import-untyped]
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatchBuilder,
)

from outrider.events.cloudevents import from_attributes, to_attributes
from outrider.outcomes import HELD_BACK, Outcome, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outrider.events.envelope import EventEnvelope

    Place = tuple[str, int]
    """A topic and a partition of it."""
    Headers = list[tuple[str, bytes]]

_PREFIX: Final = "ce_"
_CONTENT_TYPE: Final = "content-type"
_SIGN_BIT: Final = 0x7FFFFFFF


class _Names(dict[str, str]):
    """The header of each attribute."""

    def __missing__(self, attribute: str) -> str:
        self[attribute] = name = _PREFIX + attribute
        return name


_names: Final = _Names({"datacontenttype": _CONTENT_TYPE})


def to_headers(envelope: EventEnvelope, source: str) -> Headers:
    return [
        (_names[name], value.encode()) for name, value in to_attributes(envelope, source).items()
    ]


def to_envelope(headers: Iterable[tuple[str, bytes | None]], value: bytes) -> EventEnvelope:
    """Raises DecodeError, InvalidEvent or UnicodeDecodeError if it is no event of ours."""
    attributes = {
        name.removeprefix(_PREFIX): text.decode()
        for name, text in headers
        if name.startswith(_PREFIX) and text is not None
    }
    return from_attributes(attributes, value)


@lru_cache(maxsize=16_384)
def _hash(key: bytes) -> int:
    """As Kafka's own clients do it, so that all producers agree on a key's partition."""
    return int(murmur2(key)) & _SIGN_BIT


@dataclass(slots=True)
class Run:
    """Records that go to one partition together; the broker takes all of them or none."""

    records: Any
    indexes: list[int] = field(default_factory=list)


class Batch:
    """The events of one publish call, and what became of each: None is not known yet."""

    def __init__(self, envelopes: Sequence[EventEnvelope]) -> None:
        self.envelopes = envelopes
        self.outcomes: list[Outcome | None] = [None] * len(envelopes)
        self.runs: dict[Place, list[Run]] = {}
        # Where an aggregate's events go; None says that the rest of them has to wait.
        self._homes: dict[tuple[str, str], Place | None] = {}
        self._now = time.time_ns() // 1_000_000

    def pack(
        self,
        topics: Sequence[str],
        partitions: dict[str, int | str],
        new_run: Callable[[], Any],
        *,
        limit: int,
        source: str,
    ) -> None:
        """Put every event to its partition, or refuse it; `partitions` may say why it must be."""
        for index, envelope in enumerate(self.envelopes):
            topic = topics[index]
            count = partitions[topic]
            if isinstance(count, str):
                self._refuse(index, count)
                continue
            try:
                key, headers = envelope.aggregate_id.encode(), to_headers(envelope, source)
            except UnicodeEncodeError:
                self._refuse(index, "a header is no valid Unicode text")
                continue
            size = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, envelope.data, headers)
            if size > limit:
                self._refuse(index, f"too large: {size} bytes with headers, {limit} are allowed")
            else:
                self._add(index, (topic, _hash(key) % count), key, headers, new_run)

    def _refuse(self, index: int, reason: str) -> None:
        aggregate = self._aggregate(index)
        waits = self._homes.get(aggregate, ()) is None
        self.outcomes[index] = HELD_BACK if waits else Refused(reason)
        self._homes[aggregate] = None

    def _add(
        self, index: int, place: Place, key: bytes, headers: Headers, new_run: Callable[[], Any]
    ) -> None:
        aggregate = self._aggregate(index)
        if self._homes.setdefault(aggregate, place) != place:
            # Partitions fail apart, so an aggregate must not be in two of them at once.
            self.outcomes[index] = HELD_BACK
            self._homes[aggregate] = None
            return
        runs, data = self.runs.setdefault(place, []), self.envelopes[index].data
        record = {"key": key, "value": data, "headers": headers, "timestamp": self._now}
        if not runs or runs[-1].records.append(**record) is None:
            runs.append(Run(new_run()))
            runs[-1].records.append(**record)
        runs[-1].indexes.append(index)

    def _aggregate(self, index: int) -> tuple[str, str]:
        envelope = self.envelopes[index]
        return (envelope.aggregate_type, envelope.aggregate_id)
