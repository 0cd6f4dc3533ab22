"""What an acknowledgement of these topics is worth: replicas, those in sync, partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.admin.config_resource import (  # type: ignore[import-untyped]
    ConfigResource,
    ConfigResourceType,
)

from outrider.ports import CheckResult

if TYPE_CHECKING:
    from collections.abc import Collection

    from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

_ENOUGH: Final = 3


async def check_durability(
    admin: AIOKafkaAdminClient, topics: Collection[str]
) -> list[CheckResult]:
    if not topics:
        text = "events name their topics, so that none can be looked at"
        return [CheckResult("topics", "fine", text)]
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


def _verdict(topic: dict[str, Any], brokers: int, in_sync: int) -> CheckResult:
    name, partitions = topic["topic"], topic["partitions"]
    replicas = min(len(each["replicas"]) for each in partitions)
    said = (
        f"topic {name}: {len(partitions)} partitions, {replicas} replicas, "
        f"at least {in_sync} in sync"
    )
    if in_sync > replicas:
        cure = f"lower min.insync.replicas of {name}, or add replicas"
        return CheckResult("topics", "fault", f"{said}: it accepts nothing", cure)
    if replicas < min(brokers, _ENOUGH):
        cure = f"add replicas to {name}; new topics get them by replication=3"
        return CheckResult("topics", "warning", f"{said}: lost with one of {brokers} brokers", cure)
    if replicas > 1 and in_sync < 2:
        text = f"{said}: an event may be acknowledged by one broker alone, and lost with it"
        return CheckResult("topics", "warning", text, f"set min.insync.replicas=2 for {name}")
    return CheckResult(
        "topics", "fine", f"{said}; adding partitions breaks the order at that moment"
    )
