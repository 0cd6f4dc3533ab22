"""Checks whether topics keep what they acknowledge: replicas, in-sync ones, lost records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition  # type: ignore[import-untyped]
from aiokafka.admin.config_resource import (  # type: ignore[import-untyped]
    ConfigResource,
    ConfigResourceType,
)

from outrider.brokers.kafka.positions import Position, ranges, resume
from outrider.ports import CheckResult

if TYPE_CHECKING:
    from collections.abc import Collection

    from aiokafka import AIOKafkaConsumer
    from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

    from outrider.consumer.losses import Loss

_SAFE_REPLICAS: Final = 3


async def check_durability(
    admin: AIOKafkaAdminClient, topics: Collection[str]
) -> list[CheckResult]:
    if not topics:
        text = "each event names its own topic, so no topic can be checked in advance"
        return [CheckResult("topics", "fine", text)]
    brokers = len((await admin.describe_cluster())["brokers"])
    in_sync = await _min_in_sync(admin, topics)
    return [
        _verdict(topic, brokers, in_sync[topic["topic"]])
        for topic in await admin.describe_topics(list(topics))
    ]


def missing_topic(name: str, partitions: int | None) -> CheckResult:
    text = f"topic {name} is missing: events wait"
    if partitions is None:
        return CheckResult("topics", "fault", text, "create it, or set partitions")
    return CheckResult("topics", "warning", text, "start a relay, which creates it")


async def check_groups(
    admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer, topics: Collection[str]
) -> list[CheckResult]:
    """The groups whose next records are gone; `consumer` belongs to no group."""
    places = [
        TopicPartition(topic["topic"], partition["partition"])
        for topic in await admin.describe_topics(list(topics))
        for partition in topic["partitions"]
    ]
    found = await ranges(consumer, places)
    results = []
    for group, *_ in sorted(await admin.list_consumer_groups()):
        committed = await admin.list_consumer_group_offsets(group, partitions=places)
        positions = {
            place: Position.parse(*commit)
            for place, commit in committed.items()
            if commit.offset >= 0
        }
        losses = [resume(position, found[place])[1] for place, position in positions.items()]
        if positions:
            results.append(_group_verdict(group, [loss for loss in losses if loss is not None]))
    return results


def _group_verdict(group: str, losses: list[Loss]) -> CheckResult:
    if not losses:
        return CheckResult(f"group {group}", "fine", "the records that it handles next are there")
    count = sum(loss.count or 0 for loss in losses)
    text = f"at least {count:,} records were lost from {losses[0].first} on: {losses[0].reason}"
    cure = "start its consumer, which tells each range; `outrider replay` publishes them again"
    return CheckResult(f"group {group}", "warning", text, cure)


async def _min_in_sync(admin: AIOKafkaAdminClient, topics: Collection[str]) -> dict[str, int]:
    """The setting min.insync.replicas of each topic."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    found = dict.fromkeys(topics, 1)
    for answer in await admin.describe_configs(resources):
        for _, _, _, topic, entries in answer.resources:
            values = {entry[0]: entry[1] for entry in entries}
            found[topic] = int(values.get("min.insync.replicas", 1))
    return found


def _verdict(topic: dict[str, Any], brokers: int, in_sync: int) -> CheckResult:
    name, partitions = topic["topic"], topic["partitions"]
    replicas = min(len(each["replicas"]) for each in partitions)
    summary = (
        f"topic {name}: {len(partitions)} partitions, {replicas} replicas, "
        f"at least {in_sync} in sync"
    )
    if in_sync > replicas:
        cure = f"lower min.insync.replicas of {name}, or add replicas"
        return CheckResult("topics", "fault", f"{summary}: it accepts nothing", cure)
    if replicas < min(brokers, _SAFE_REPLICAS):
        cure = f"add replicas to {name}; new topics get them by replicas=3"
        return CheckResult(
            "topics", "warning", f"{summary}: lost with one of {brokers} brokers", cure
        )
    if replicas > 1 and in_sync < 2:
        text = f"{summary}: an event may be acknowledged by one broker alone, and lost with it"
        return CheckResult("topics", "warning", text, f"set min.insync.replicas=2 for {name}")
    return CheckResult(
        "topics", "fine", f"{summary}; adding partitions breaks the order at that moment"
    )
