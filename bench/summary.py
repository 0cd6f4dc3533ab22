"""Tables of figures that README and guides show: what was measured, beside what."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from bench.figures import FIGURES, NAME, NotRecorded, filled


@dataclass(frozen=True)
class Line:
    """One line of a table: what was measured, beside what, and the figures by their names."""

    what: str
    beside: str
    figures: str

    @property
    def part(self) -> str:
        return FIGURES[NAME.findall(self.figures)[0]].part

    def cells(self) -> list[str]:
        full = "OUTRIDER_FULL=1 " if self.part in ("drain", "horizon") else ""
        own = [filled(cell) for cell in (self.what, self.beside, self.figures)]
        return [*own, f"`{full}make bench PART={self.part}`"]


_BARE = "a bare claim-send-settle loop, without order, outcomes or deadlines"

TABLES: dict[str, tuple[Line, ...]] = {
    "summary": (
        Line(
            "transaction with one event",
            "the same with an outbox row inserted by hand",
            "{producer.one_event.by_hand}",
        ),
        Line(
            "transaction with one event", "the business INSERT alone", "{producer.one_event.alone}"
        ),
        Line(
            "transaction with one event, `Outbox(wake_up=False)`",
            "INSERT by hand; business INSERT alone",
            "{producer.no_wake_up.by_hand}; {producer.no_wake_up.alone}",
        ),
        Line(
            "transaction with ten events",
            "the business INSERT alone",
            "{producer.ten_events.alone}",
        ),
        Line(
            "outbox row by hand, NOTIFY inside the transaction",
            "the business INSERT alone",
            "{producer.notify_inside.alone}",
        ),
        Line("relay to RabbitMQ, {relay.rate} events/s", _BARE, "{relay.bare}"),
        Line(
            "relay to RabbitMQ",
            "claim 100, publish one by one, update one by one",
            "{relay.one_by_one}",
        ),
        Line(
            "relay to RabbitMQ, batches of 1,000, {relay.tuned.rate} events/s",
            "the bare loop; one by one",
            "{relay.tuned.bare}; {relay.tuned.one_by_one}",
        ),
        Line(
            "relay to nowhere; with batches of 1,000",
            "a bare claim-and-settle loop",
            "{relay.nowhere.bare}; {relay.nowhere.tuned.bare}",
        ),
        Line(
            "relay to RabbitMQ, to nowhere",
            "txoutbox, the fastest peer that keeps order, both with default settings",
            "{peers.rabbitmq.default}, {peers.nowhere.default}",
        ),
        Line(
            "relay to RabbitMQ, to nowhere",
            "txoutbox, both tuned",
            "{peers.rabbitmq.tuned}, {peers.nowhere.tuned}",
        ),
        Line(
            "relay to Kafka",
            "`send` of aiokafka without a database; a bare loop",
            "{kafka.client}; {kafka.bare}",
        ),
        Line(
            "relay to Kafka, batches of 1,000, {kafka.tuned.rate} events/s",
            "`send` of aiokafka without a database; a bare loop",
            "{kafka.tuned.client}; {kafka.tuned.bare}",
        ),
        Line(
            "relay to NATS",
            "nats-py pipelined without a database; a bare loop",
            "{nats.client}; {nats.bare}",
        ),
        Line(
            "relay to NATS, batches of 1,000, {nats.tuned.rate} events/s",
            "nats-py pipelined without a database; a bare loop",
            "{nats.tuned.client}; {nats.tuned.bare}",
        ),
        Line(
            "relay to Redis, `appendfsync always`",
            "redis-py pipeline without a database; a bare loop",
            "{redis.client}; {redis.bare}",
        ),
        Line(
            "relay to Redis, batches of 1,000, {redis.tuned.rate} events/s",
            "redis-py pipeline without a database; a bare loop",
            "{redis.tuned.client}; {redis.tuned.bare}",
        ),
        Line(
            "two relays, four relays to a slow broker",
            "one relay",
            "{scaling.two}, {scaling.four}",
        ),
        Line(
            "relay to RabbitMQ, batches of 1,000, 5 M published and 1 M pending rows in the table",
            "the same relay on an empty table",
            "{big_table}",
        ),
        Line(
            "the last quarter of 10 M pending events, batches of 1,000, to nowhere",
            "the first quarter; memory grew by {drain.memory} MB",
            "{drain}",
        ),
        Line(
            "relay beside a transaction that is open for ten minutes, batches of 1,000",
            "the same without it",
            "{horizon}",
        ),
        Line(
            "consumer on RabbitMQ, {consume.rate} events/s",
            "aio-pika that only acknowledges",
            "{consume.client}",
        ),
        Line(
            "consumer with inbox and one INSERT, {consume.inbox.rate} events/s",
            "the same by hand, without order",
            "{consume.inbox.by_hand}",
        ),
        Line("event to JSON", "`json.dumps(asdict(event), default=str)`", "{codec}"),
    ),
}
_SHORT = ("producer", "relay", "peers", "scaling", "big_table", "consume")
TABLES["headline"] = tuple(line for line in TABLES["summary"] if line.part in _SHORT)


def table(name: str) -> list[list[str]]:
    """The lines whose figures are recorded; repeated commands are named once."""
    found: list[list[str]] = []
    last = ""
    for line in TABLES[name]:
        with suppress(NotRecorded):
            *cells, command = line.cells()
            found.append([*cells, "" if command == last else command])
            last = command
    return found
