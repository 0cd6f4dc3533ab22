"""Topic ids: a topic that was deleted and created again has the same name and another id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.protocol.api import Request, RequestStruct, Response  # type: ignore[import-untyped]
from aiokafka.protocol.types import (  # type: ignore[import-untyped]
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import BytesIO

    from aiokafka.client import AIOKafkaClient  # type: ignore[import-untyped]

_Text = CompactString("utf-8")


class _Uuid(Int16):  # type: ignore[misc] # a schema takes subclasses of its own types only
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


_PARTITION = CompactArray(
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    ("tags", TaggedFields),
)


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 3, 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", _Text),
                ("port", Int32),
                ("rack", _Text),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", _Text),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _Text),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                ("partitions", _PARTITION),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataStruct(RequestStruct):  # type: ignore[misc]
    """Version 10, the first with topic ids, of Kafka 2.8; aiokafka stops at version 5."""

    API_KEY, API_VERSION, FLEXIBLE_VERSION = 3, 10, True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", _Uuid), ("topic", _Text), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_operations", Boolean),
        ("include_topic_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataStruct]):  # type: ignore[misc]
    API_KEY = 3

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics: list[Any] = [(bytes(16), topic, {}) for topic in topics]

    def build(self, struct: type[_MetadataStruct]) -> Any:
        return struct(self._topics, False, False, False, {})


async def topic_ids(client: AIOKafkaClient, topics: Iterable[str]) -> dict[str, str]:
    """The id of each topic that exists; none if the broker is too old to have ids.

    A topic that was just created has an id, though also the error that it has no leader yet.
    """
    try:
        answer = await client.send(client.get_random_node(), _MetadataRequest(topics))
    except NotImplementedError:
        return {}
    return {topic: id_.hex() for _, topic, id_, *_ in answer.topics if any(id_)}
