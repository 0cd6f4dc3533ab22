"""Exchanges, queues and bindings as data, and the AMQP methods that declare them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from pamqp import commands, frame

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pamqp.base import Frame
    from pamqp.common import FieldValue

_ANY: Final = "#"


@dataclass(frozen=True)
class Exchange:
    """Where events are sent to."""

    name: str
    kind: str = "topic"
    durable: bool = True
    passive: bool = False
    """Only check that it exists, for a user that may not configure it."""
    arguments: Mapping[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Binding:
    """Which events of an exchange a queue receives; `*` is one word of the type, `#` any number."""

    exchange: str
    routing_key: str = _ANY


@dataclass(frozen=True)
class Queue:
    """A durable queue."""

    name: str
    bindings: tuple[Binding, ...] = ()
    kind: Literal["classic", "quorum"] = "classic"
    single_active_consumer: bool = False
    """The broker delivers to one consumer at a time, and to the next once that one is gone."""
    dead_letter_exchange: str | None = None
    """Where a consumer's rejected messages go; None drops them."""
    max_length: int | None = None
    """From then on events are refused; RabbitMQ's own default would drop the oldest instead."""
    passive: bool = False
    """Only check that it exists, for a user that may not configure it; the rest is believed."""
    arguments: Mapping[str, FieldValue] = field(default_factory=dict)
    """Anything else, by RabbitMQ's names; wins over the fields above."""

    def all_arguments(self) -> dict[str, FieldValue]:
        arguments: dict[str, FieldValue] = {}
        if self.kind != "classic":
            arguments["x-queue-type"] = self.kind
        if self.single_active_consumer:
            arguments["x-single-active-consumer"] = True
        if self.dead_letter_exchange is not None:
            arguments["x-dead-letter-exchange"] = self.dead_letter_exchange
        if self.max_length is not None:
            arguments |= {"x-max-length": self.max_length, "x-overflow": "reject-publish"}
        return arguments | dict(self.arguments)


@dataclass(frozen=True)
class Topology:
    """All that is declared when either side opens; what exists already with it is left alone."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()

    def with_exchange(self, name: str, *, passive: bool = False) -> Topology:
        """The same, with a durable topic exchange of that name unless there is one."""
        if any(exchange.name == name for exchange in self.exchanges):
            return self
        return Topology((Exchange(name, passive=passive), *self.exchanges), self.queues)

    def with_queue(self, queue: Queue) -> Topology:
        """The same, with this queue unless there is one of its name."""
        if any(each.name == queue.name for each in self.queues):
            return self
        return Topology(self.exchanges, (*self.queues, queue))


def messaging_topology(exchange: str = "messaging", *, audit: bool = False) -> Topology:
    """Queues for group and scheduled messages, for all events if asked, and for dead letters."""
    dead = f"{exchange}.dlx"

    def queue(name: str, key: str) -> Queue:
        return Queue(name, (Binding(exchange, key),), dead_letter_exchange=dead)

    queues = [
        Queue(f"{exchange}.dlq", (Binding(dead),)),
        queue("group_message_processing", "group_message.*"),
        queue("scheduled_message_processing", "scheduled_message.*"),
    ]
    if audit:
        queues.append(queue(f"{exchange}_audit", _ANY))
    return Topology((Exchange(exchange), Exchange(dead)), tuple(queues))


def declarations(topology: Topology) -> tuple[Frame, ...]:
    """The methods that declare all of it, in an order that RabbitMQ can follow."""
    try:
        made = tuple(_declarations(topology))
        for method in made:
            frame.marshal(method, 1)
    except (ValueError, TypeError, struct.error) as error:
        raise ConfigurationError(f"topology that AMQP cannot express: {error}") from error
    return made


def _declarations(topology: Topology) -> Iterator[Frame]:
    for exchange in topology.exchanges:
        yield commands.Exchange.Declare(
            exchange=exchange.name,
            exchange_type=exchange.kind,
            durable=exchange.durable,
            passive=exchange.passive,
            arguments=dict(exchange.arguments),
        )
    for queue in topology.queues:
        yield commands.Queue.Declare(
            queue=queue.name,
            durable=True,
            passive=queue.passive,
            arguments=queue.all_arguments(),
        )
        for binding in () if queue.passive else queue.bindings:
            yield commands.Queue.Bind(
                queue=queue.name, exchange=binding.exchange, routing_key=binding.routing_key
            )
