"""Positions: what a group commits for a partition, and where a source resumes from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from outrider.brokers.kafka.topic_ids import topic_ids
from outrider.consumer.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

_EXPIRED: Final = (
    "they expired before they were handled; raise retention.ms or retention.bytes of the topic, "
    "or add consumers"
)
_RECREATED: Final = (
    "the topic was deleted and created again; the new topic is read from its beginning"
)
_TRUNCATED: Final = (
    "the partition ends before the position of the group, as after an unclean leader election; "
    "it is read from its beginning"
)


@dataclass(frozen=True, kw_only=True)
class Position:
    """An offset, and what the metadata of its commit says about the process that wrote it.

    `owner` is the source that receives from the partition. It stays when its process dies, and is
    empty when the source gave the partition back.
    """

    offset: int
    owner: str = ""
    topic_id: str = ""
    crashes: Mapping[int, int] = field(default_factory=dict)
    """The crash count of each offset with a crash."""
    end: int = 0
    """The records before this offset were received, not all of them acknowledged."""
    first_innocent: int = 0
    """A process that died may have held the records before this offset."""

    def is_of_another_topic(self, topic_id: str) -> bool:
        """Whether the topic was created again since then; an empty id is not known."""
        return bool(self.topic_id and topic_id) and self.topic_id != topic_id

    @property
    def metadata(self) -> str:
        crashes = {str(offset): count for offset, count in self.crashes.items()}
        found = {
            "owner": self.owner,
            "topic": self.topic_id,
            "crashes": crashes,
            "end": self.end,
            "first_innocent": self.first_innocent,
        }
        return json.dumps({name: value for name, value in found.items() if value})

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Position:
        """Metadata of somebody else counts as that of a process that died."""
        try:
            found = json.loads(metadata)
            return cls(
                offset=offset,
                owner=str(found.get("owner", "")),
                topic_id=str(found.get("topic", "")),
                crashes={int(at): int(count) for at, count in found.get("crashes", {}).items()},
                end=int(found.get("end", 0)),
                first_innocent=int(found.get("first_innocent", 0)),
            )
        except (ValueError, AttributeError, TypeError):
            return cls(offset=offset, owner="unknown")


@dataclass(frozen=True)
class Range:
    """What a partition holds now."""

    place: str
    """The topic and the number of the partition, as in the header `dead-letter-origin`."""
    beginning: int
    end: int
    topic_id: str


async def ranges(
    consumer: AIOKafkaConsumer, places: Collection[TopicPartition]
) -> dict[TopicPartition, Range]:
    beginnings = await consumer.beginning_offsets(places)
    ends = await consumer.end_offsets(places)
    ids = await topic_ids(consumer._client, {place.topic for place in places})
    return {
        place: Range(
            place=f"{place.topic}/{place.partition}",
            beginning=beginnings[place],
            end=ends[place],
            topic_id=ids.get(place.topic, ""),
        )
        for place in places
    }


def resume(position: Position, found: Range) -> tuple[int, Loss | None]:
    """Where to receive from, and what is lost."""
    offset = position.offset
    if position.is_of_another_topic(found.topic_id):
        return found.beginning, _loss(found.place, offset, None, _RECREATED)
    if offset < found.beginning:
        return found.beginning, _loss(found.place, offset, found.beginning - offset, _EXPIRED)
    if offset > found.end:
        return found.beginning, _loss(found.place, offset, None, _TRUNCATED)
    return offset, None


def _loss(place: str, first: int, count: int | None, reason: str) -> Loss:
    last = "the end of that time" if count is None else f"{place}/{first + count - 1}"
    return Loss(first=f"{place}/{first}", last=last, count=count, reason=reason)
