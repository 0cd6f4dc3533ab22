"""Figures that pages quote: each has a name and is read from the recorded results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from bench import (
    big_table,
    codec,
    consume,
    horizon,
    jetstream,
    kafka,
    measure,
    producer,
    redis_streams,
    relay,
    scaling,
)

NAME = re.compile(r"\{([\w.]+)\}")


class NotRecorded(Exception):
    """No run has recorded this figure yet; the text says which command does."""


def report_of(part: str) -> dict[str, Any]:
    path = measure.RESULTS / f"{part}.json"
    if not path.exists():
        raise NotRecorded(f"make bench PART={part}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


class Figure(Protocol):
    """Something measured, as pages print it."""

    @property
    def part(self) -> str: ...
    def text(self) -> str: ...


Figures = dict[str, Figure]


@dataclass(frozen=True)
class Rate:
    """Events or transactions per second of one case, to the next hundred."""

    part: str
    table: str
    case: str

    def text(self) -> str:
        return f"{round(self.value(), -2):,.0f}"

    def value(self) -> float:
        rows = report_of(self.part)["tables"].get(self.table, [])
        for row in rows:
            if row["case"] == self.case:
                return float(row["per_second"])
        raise NotRecorded(f"make bench PART={self.part} ({self.table}: {self.case})")


@dataclass(frozen=True)
class Ratio:
    """The median rate of one case, divided by that of another case of the same run."""

    part: str
    table: str
    case: str
    beside: str

    def text(self) -> str:
        ratio = self.value()
        return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"

    def value(self) -> float:
        own, other = (Rate(self.part, self.table, name) for name in (self.case, self.beside))
        return own.value() / other.value()


@dataclass(frozen=True)
class Range:
    """The smallest and the largest of several ratios."""

    ratios: tuple[Ratio, ...]

    @property
    def part(self) -> str:
        return self.ratios[0].part

    def text(self) -> str:
        values = [ratio.value() for ratio in self.ratios]
        return f"{min(values):.0f} to {max(values):.0f}"


@dataclass(frozen=True)
class Latency:
    """A percentile in milliseconds."""

    part: str
    case: str
    percentile: str

    def text(self) -> str:
        found = report_of(self.part)["settings"]["latency"][self.case]
        return f"{found[f'{self.percentile} ms']:.1f}"


@dataclass(frozen=True)
class MemoryGrowth:
    """Megabytes that the process of a drain grew after its first slice."""

    part: str
    slices: str

    def text(self) -> str:
        found = [
            each["megabytes"] for each in report_of(self.part)["settings"]["slices"][self.slices]
        ]
        return f"{max(found) - found[0]:.1f}"


def _producer(case: str, beside: str = producer.ALONE) -> Ratio:
    return Ratio("producer", producer.ASYNC_POSTGRES, case, beside)


def _peer(sink: str, variant: str) -> Ratio:
    return Ratio("peers", sink, f"outrider, {variant}", f"txoutbox, {variant}")


def _relay_to(part: str, table: str, cases: tuple[str, str], others: dict[str, str]) -> Figures:
    """The rate with default settings and with larger batches, and what both were measured with."""
    found: Figures = {}
    for name, case in zip((part, f"{part}.tuned"), cases, strict=True):
        found[f"{name}.rate"] = Rate(part, table, case)
        found |= {f"{name}.{key}": Ratio(part, table, case, other) for key, other in others.items()}
    return found


_TO_RABBITMQ, _TO_NOWHERE = "to RabbitMQ", "to nowhere"

FIGURES: Figures = {
    "producer.one_event.by_hand": _producer(producer.ONE, producer.BY_HAND),
    "producer.one_event.alone": _producer(producer.ONE),
    "producer.no_wake_up.by_hand": _producer(producer.ONE_NO_WAKE_UP, producer.BY_HAND),
    "producer.no_wake_up.alone": _producer(producer.ONE_NO_WAKE_UP),
    "producer.ten_events.alone": _producer(producer.TEN),
    "producer.notify_inside.alone": _producer(producer.NOTIFY_INSIDE),
    **_relay_to(
        "relay",
        _TO_RABBITMQ,
        (relay.OURS, relay.OURS_TUNED),
        {"bare": relay.CEILING, "one_by_one": relay.ONE_BY_ONE},
    ),
    "relay.nowhere.bare": Ratio("relay", _TO_NOWHERE, relay.OURS_NOOP, relay.BARE_NOOP),
    "relay.nowhere.tuned.bare": Ratio("relay", _TO_NOWHERE, relay.OURS_NOOP_TUNED, relay.BARE_NOOP),
    "relay.frames.aio_pika": Ratio("relay", _TO_RABBITMQ, relay.BY_HAND, relay.AIO_PIKA),
    "relay.latency.p50": Latency("relay", "commit to consumer", "p50"),
    "relay.latency.p99": Latency("relay", "commit to consumer", "p99"),
    **_relay_to(
        "kafka",
        "to Kafka",
        (kafka.OURS, kafka.OURS_TUNED),
        {"bare": kafka.CEILING, "client": kafka.SEND},
    ),
    **_relay_to(
        "nats",
        "to NATS",
        (jetstream.OURS, jetstream.OURS_TUNED),
        {"bare": jetstream.CEILING, "client": jetstream.RAW},
    ),
    **_relay_to(
        "redis",
        "to Redis, appendfsync always",
        (redis_streams.OURS, redis_streams.OURS_TUNED),
        {"bare": redis_streams.CEILING, "client": redis_streams.PIPELINE},
    ),
    "consume.rate": Rate("consume", "from rabbitmq", consume.OURS_ALONE),
    "consume.client": Ratio("consume", "from rabbitmq", consume.OURS_ALONE, consume.RAW),
    "consume.inbox.rate": Rate("consume", "from rabbitmq", consume.OURS),
    "consume.inbox.by_hand": Ratio("consume", "from rabbitmq", consume.OURS, consume.BY_HAND),
    "peers.rabbitmq.default": _peer(_TO_RABBITMQ, "default"),
    "peers.rabbitmq.tuned": _peer(_TO_RABBITMQ, "tuned"),
    "peers.nowhere.default": _peer(_TO_NOWHERE, "default"),
    "peers.nowhere.tuned": _peer(_TO_NOWHERE, "tuned"),
    "big_table": Ratio("big_table", big_table.TABLE, big_table.FULL, big_table.EMPTY),
    "scaling.two": Ratio("scaling", scaling.TABLE, scaling.name_of(2), scaling.name_of(1)),
    "scaling.four": Ratio("scaling", scaling.TABLE, scaling.name_of(4), scaling.name_of(1)),
    "drain": Ratio("drain", _TO_NOWHERE, "last quarter", "first quarter"),
    "drain.memory": MemoryGrowth("drain", _TO_NOWHERE),
    "horizon": Ratio("horizon", "last quarter", horizon.PINNED, horizon.FREE),
    "codec": Range(
        tuple(Ratio("codec", title, codec.OURS, codec.ONE_LINER) for title in codec.ENCODING)
    ),
}


def filled(text: str) -> str:
    """The text with every {name} replaced by its figure."""
    return NAME.sub(lambda found: FIGURES[found[1]].text(), text)
