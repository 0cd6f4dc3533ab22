"""Figures that pages quote: each has a name and is read from the recorded results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from bench import cases, measure

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


def row_of(part: str, table: str, case: str) -> dict[str, Any]:
    for row in report_of(part)["tables"].get(table, []):
        if row["case"] == case:
            found: dict[str, Any] = row
            return found
    raise NotRecorded(f"make bench PART={part} ({table}: {case})")


@dataclass(frozen=True)
class Rate:
    """Events or transactions per second of one case, to the next hundred."""

    part: str
    table: str
    case: str

    def text(self) -> str:
        return f"{round(row_of(self.part, self.table, self.case)['per_second'], -2):,.0f}"


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
        """The recorded ratio, as the tables show it; computed if the run has not recorded it."""
        own, other = (row_of(self.part, self.table, name) for name in (self.case, self.beside))
        recorded = own["ratios"].get(self.beside, own["per_second"] / other["per_second"])
        return float(recorded)


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


def _producer(case: str, beside: str = cases.ALONE) -> Ratio:
    return Ratio("producer", cases.ASYNC_POSTGRES, case, beside)


def _peer(sink: str, variant: str) -> Ratio:
    return Ratio("peers", sink, f"outrider, {variant}", f"txoutbox, {variant}")


def _relay_to(part: str, table: str, sink: str, others: dict[str, str]) -> Figures:
    """The rate with default settings and with larger batches, and what both were measured with."""
    found: Figures = {}
    for name, case_of in ((part, cases.outrider_to), (f"{part}.tuned", cases.outrider_tuned)):
        case = case_of(sink)
        found[f"{name}.rate"] = Rate(part, table, case)
        found |= {f"{name}.{key}": Ratio(part, table, case, other) for key, other in others.items()}
    return found


FIGURES: Figures = {
    "producer.one_event.by_hand": _producer(cases.ONE_EVENT, cases.BY_HAND),
    "producer.one_event.alone": _producer(cases.ONE_EVENT),
    "producer.no_wake_up.by_hand": _producer(cases.ONE_EVENT_NO_WAKE_UP, cases.BY_HAND),
    "producer.no_wake_up.alone": _producer(cases.ONE_EVENT_NO_WAKE_UP),
    "producer.ten_events.alone": _producer(cases.TEN_EVENTS),
    "producer.notify_inside.alone": _producer(cases.NOTIFY_INSIDE),
    **_relay_to(
        "relay",
        cases.TO_RABBITMQ,
        "RabbitMQ",
        {"bare": cases.BARE_FRAMES, "one_by_one": cases.ONE_BY_ONE},
    ),
    "relay.nowhere.bare": Ratio(
        "relay", cases.TO_NOWHERE, cases.outrider_to("nowhere"), cases.BARE_NOOP
    ),
    "relay.nowhere.tuned.bare": Ratio(
        "relay", cases.TO_NOWHERE, cases.outrider_tuned("nowhere"), cases.BARE_NOOP
    ),
    "relay.frames.aio_pika": Ratio("relay", cases.TO_RABBITMQ, cases.FRAMES, cases.AIO_PIKA),
    "relay.latency.p50": Latency("relay", cases.COMMIT_TO_CONSUMER, "p50"),
    "relay.latency.p99": Latency("relay", cases.COMMIT_TO_CONSUMER, "p99"),
    **_relay_to(
        "kafka",
        "to Kafka",
        "Kafka",
        {"bare": cases.BARE_KAFKA, "client": cases.AIOKAFKA_SEND},
    ),
    **_relay_to(
        "nats",
        "to NATS",
        "NATS",
        {"bare": cases.BARE_NATS, "client": cases.NATS_PIPELINED},
    ),
    **_relay_to(
        "redis",
        "to Redis, appendfsync always",
        "Redis",
        {"bare": cases.BARE_REDIS, "client": cases.REDIS_PIPELINE},
    ),
    "consume.rate": Rate("consume", "from rabbitmq", cases.CONSUMER),
    "consume.client": Ratio("consume", "from rabbitmq", cases.CONSUMER, cases.RAW_CLIENT),
    "consume.inbox.rate": Rate("consume", "from rabbitmq", cases.CONSUMER_WITH_INBOX),
    "consume.inbox.by_hand": Ratio(
        "consume", "from rabbitmq", cases.CONSUMER_WITH_INBOX, cases.INBOX_BY_HAND
    ),
    "peers.rabbitmq.default": _peer(cases.TO_RABBITMQ, "default"),
    "peers.rabbitmq.tuned": _peer(cases.TO_RABBITMQ, "tuned"),
    "peers.nowhere.default": _peer(cases.TO_NOWHERE, "default"),
    "peers.nowhere.tuned": _peer(cases.TO_NOWHERE, "tuned"),
    "big_table": Ratio(
        "big_table", cases.BIG_TABLE, cases.filled_table(5_000_000, 1_000_000), cases.EMPTY_TABLE
    ),
    "scaling.two": Ratio("scaling", cases.SLOW_BROKER, cases.relays(2), cases.relays(1)),
    "scaling.four": Ratio("scaling", cases.SLOW_BROKER, cases.relays(4), cases.relays(1)),
    "drain": Ratio("drain", cases.TO_NOWHERE, cases.LAST_QUARTER, cases.FIRST_QUARTER),
    "drain.memory": MemoryGrowth("drain", cases.TO_NOWHERE),
    "horizon": Ratio("horizon", cases.LAST_QUARTER, cases.PINNED, cases.FREE),
    "codec": Range(
        tuple(
            Ratio("codec", title, cases.SERIALIZE, cases.JSON_ONE_LINER)
            for title in (cases.SMALL_EVENT, cases.LARGE_EVENT)
        )
    ),
}


def filled(text: str) -> str:
    """The text with every {name} replaced by its figure."""
    return NAME.sub(lambda found: FIGURES[found[1]].text(), text)
