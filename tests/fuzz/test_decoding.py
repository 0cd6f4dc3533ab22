"""Whatever a stranger sends is an event or a clear refusal; it never ends a consumer."""

from __future__ import annotations

import asyncio
import json
import struct
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from pamqp import commands
from pamqp.frame import marshal

from outrider.brokers.rabbitmq.amqp import HEADERS, string_value, write_header, write_table
from tests.support.fuzz import decoders
from tests.support.fuzz.budget import fuzz, hostile_text

NOW = datetime.now(UTC).isoformat()
VALID = {
    "event_id": str(uuid4()),
    "event_type": "order.placed",
    "version": 1,
    "aggregate_type": "order",
    "aggregate_id": "7",
    "occurred_at": NOW,
    "payload": {"n": 1},
    "metadata": {"correlation_id": "r-1"},
}
ATTRIBUTES = {
    "specversion": "1.0",
    "id": str(uuid4()),
    "source": "/shop",
    "type": "order.placed",
    "time": NOW,
    "subject": "7",
    "aggregatetype": "order",
    "eventversion": "1",
}

leaves = st.none() | st.booleans() | st.integers() | st.floats() | hostile_text
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(hostile_text, inner), max_leaves=6
)
deep = st.integers(10, 5_000).map(lambda n: "[" * n + "]" * n)


def changed(valid: dict[str, Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nearly right, which leads further than nonsense does."""
    changes = st.dictionaries(st.sampled_from([*valid, "added", "ce-id"]), values, max_size=3)
    without = st.sets(st.sampled_from(list(valid)), max_size=2)
    return st.builds(
        lambda new, gone: {k: v for k, v in {**valid, **new}.items() if k not in gone},
        changes,
        without,
    )


def texts_of(valid: dict[str, Any]) -> st.SearchStrategy[bytes | str]:
    return (
        st.binary(max_size=200)
        | hostile_text
        | deep
        | changed(valid, json_values).map(json.dumps)
        | changed(valid, json_values).map(lambda found: json.dumps(found).encode())
        | st.builds(cut, changed(valid, json_values).map(json.dumps), st.integers(0, 400))
    )


def cut(whole: str, at: int) -> str:
    return whole[:at]


attribute_maps = changed(ATTRIBUTES, hostile_text)
bodies = st.binary(max_size=60) | hostile_text.map(lambda t: t.encode(errors="replace"))
raw_values = st.binary(max_size=30) | hostile_text.map(lambda t: t.encode(errors="replace"))


def prefixed(prefix: str) -> st.SearchStrategy[dict[str, bytes]]:
    """All attributes as a broker has them."""
    valid = {name: value.encode() for name, value in ATTRIBUTES.items()}
    return changed(valid, raw_values).map(lambda m: {prefix + k: v for k, v in m.items()})


def header_of(named: dict[str, bytes], size: int, tail: bytes) -> bytes:
    entries = {k.encode()[:255]: string_value(v.decode(errors="replace")) for k, v in named.items()}
    return write_header({HEADERS: write_table(entries)}, size) + tail


headers = st.builds(header_of, prefixed("ce-"), st.integers(0, 99), st.just(b"") | st.binary())
frames = st.builds(
    decoders.frame, st.sampled_from([1, 2, 3, 8, 0, 255]), st.binary(max_size=40), st.integers(0, 2)
)
methods = st.sampled_from(
    [
        marshal(commands.Basic.Ack(1, True), 1),
        marshal(commands.Basic.Nack(2, False), 1),
        marshal(commands.Basic.Ack(9), 1),
        marshal(commands.Connection.Blocked("low on memory"), 0),
        marshal(commands.Channel.Close(404, "NOT_FOUND", 60, 40), 1),
        marshal(commands.Basic.Deliver("c", 1, False, "shop", "order.placed"), 1),
        marshal(commands.Basic.Return(312, "NO_ROUTE", "shop", "order.placed"), 1),
    ]
)
contents = st.builds(
    lambda header, body: decoders.frame(2, header) + decoders.frame(3, body), headers, bodies
)
spoiled = st.builds(
    lambda whole, at, byte: whole[: at % len(whole)] + bytes([byte]) + whole[at % len(whole) + 1 :],
    methods | contents,
    st.integers(0, 10_000),
    st.integers(0, 255),
)
conversations = st.lists(methods | contents | frames | spoiled | st.binary(max_size=40), max_size=6)
pieces = st.builds(
    lambda said, size: [b"".join(said)[at : at + size] for at in range(0, 400, size)],
    conversations,
    st.integers(1, 400),
)


@pytest.mark.fault("E3", "E8")
def test_json_of_an_envelope_is_an_event_or_refused() -> None:
    fuzz(decoders.envelope_json, texts_of(VALID))
    fuzz(decoders.cloud_event_json, texts_of({**ATTRIBUTES, "data": {"n": 1}}))


def test_attributes_are_an_event_or_refused() -> None:
    fuzz(decoders.attributes, attribute_maps, bodies)


@pytest.mark.fault("E3")
def test_stored_payload_is_its_event_or_refused() -> None:
    payload = {"order_id": str(uuid4()), "total": "1.5", "event_id": str(uuid4()), "lines": []}
    kinds = st.sampled_from(decoders.KNOWN) | hostile_text
    versions = st.integers(-(2**70), 2**70) | st.just(1)
    fuzz(decoders.stored_event, kinds, texts_of({**payload, "occurred_at": NOW}), versions)


def test_message_of_a_broker_is_a_delivery_with_an_event_or_a_problem() -> None:
    some_headers = prefixed("ce_") | st.dictionaries(hostile_text, raw_values)
    nullable = st.builds(
        lambda found, gone: [(k, None if k in gone else v) for k, v in found.items()],
        some_headers,
        st.sets(st.sampled_from(["ce_id", "ce_type"]), max_size=1),
    )
    entries = prefixed("ce-").map(lambda m: [x for k, v in m.items() for x in (k.encode(), v)])
    fuzz(decoders.kafka_record, nullable, bodies | st.none())
    fuzz(decoders.redis_entry, st.builds(lambda e, b: [*e, b"data", b], entries, bodies) | entries)
    spelled = prefixed("ce-").map(lambda m: {k: v.decode(errors="replace") for k, v in m.items()})
    fuzz(decoders.nats_message, spelled | st.none(), bodies)
    fuzz(decoders.rabbitmq_message, headers | st.binary(max_size=60), bodies)


def test_bytes_that_are_no_amqp_end_the_connection_and_nothing_else() -> None:
    with asyncio.Runner() as runner:

        def rabbitmq_wire(given: list[bytes]) -> None:
            runner.run(decoders.rabbitmq_wire(given))

        fuzz(rabbitmq_wire, pieces)


def test_sizes_that_lie_reserve_no_memory() -> None:
    """A header that announces terabytes is only a number."""
    huge = struct.pack(">HHQH", 60, 0, 2**62, 0)
    deliver = marshal(commands.Basic.Deliver("c", 1, False, "shop", "order.placed"), 1)

    asyncio.run(decoders.rabbitmq_wire([deliver + decoders.frame(2, huge), b"x" * 100]))
