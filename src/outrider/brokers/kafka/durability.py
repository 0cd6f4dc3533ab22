"""What an acknowledgement of these topics is worth: replicas, those in sync, partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.admin.config_resource import (  # type: ignore[import-untyped]
    ConfigResource,
    ConfigResourceType,
)

from outrider.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection

    from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

_ENOUGH: Final = 3


async def examine(admin: AIOKafkaAdminClient, topics: Collection[str]) -> list[Finding]:
    if not topics:
        text = "events name their topics, so that none can be looked at"
        return [Finding("topics", "fine", text)]
    brokers = len((await admin.describe_cluster())["brokers"])
    in_sync = await _in_sync(admin, topics)
    return [
        _verdict(topic, brokers, in_sync[topic["topic"]])
        for topic in await admin.describe_topics(list(topics))
    ]


async def _in_sync(admin: AIOKafkaAdminClient, topics: Collection[str]) -> dict[str, int]:
    wanted = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    found = dict.fromkeys(topics, 1)
    for answer in await admin.describe_configs(wanted):
        for _, _, _, topic, entries in answer.resources:
            values = {entry[0]: entry[1] for entry in entries}
            found[topic] = int(values.get("min.insync.replicas", 1))
    return found


def _verdict(topic: dict[str, Any], brokers: int, in_sync: int) -> Finding:
    name, partitions = topic["topic"], topic["partitions"]
    replicas = min(len(each["replicas"]) for each in partitions)
    said = (
        f"topic {name}: {len(partitions)} partitions, {replicas} replicas, "
        f"at least {in_sync} in sync"
    )
    if in_sync > replicas:
        cure = f"lower min.insync.replicas of {name}, or add replicas"
        return Finding("topics", "fault", f"{said}: it accepts nothing", cure)
    if replicas < min(brokers, _ENOUGH):
        cure = f"add replicas to {name}; new topics get them by replication=3"
        return Finding("topics", "warning", f"{said}: lost with one of {brokers} brokers", cure)
    if replicas > 1 and in_sync < 2:
        text = f"{said}: an event may be acknowledged by one broker alone, and lost with it"
        return Finding("topics", "warning", text, f"set min.insync.replicas=2 for {name}")
    return Finding("topics", "fine", f"{said}; adding partitions breaks the order at that moment")
