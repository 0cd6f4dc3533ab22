"""Exchanges, queues and bindings as data, and the AMQP methods that declare them."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from outrider.brokers.rabbitmq.amqp import marshal_method, methods
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outrider.brokers.rabbitmq.amqp import FieldValue, Method

# RabbitMQ 4 drops a message of a quorum queue after 20 deliveries, lost connections included. -1
# means no limit to version 4, and 0 to version 3; both understand a large number.
_NO_DELIVERY_LIMIT: Final = 2**31 - 1
_SAFE_TEXT: Final = re.compile(r"(Max length exceeded|Invalid value) for \w+")


@dataclass(frozen=True)
class Exchange:
    """An exchange, to which events are published."""

    name: str
    kind: str = "topic"
    durable: bool = True
    passive: bool = False
    """Only check that it exists: for a user without the permission to configure it."""
    arguments: Mapping[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Binding:
    """Which events of an exchange a queue gets: in the key `*` is one word, `#` any number."""

    exchange: str
    routing_key: str = "#"


@dataclass(frozen=True)
class Queue:
    """A durable queue."""

    name: str
    bindings: tuple[Binding, ...] = ()
    kind: Literal["classic", "quorum"] = "classic"
    single_active_consumer: bool = False
    """The broker delivers to one consumer at a time, and to the next one when the first is gone."""
    dead_letter_exchange: str | None = None
    """Where messages go that a consumer rejects; None drops them."""
    max_length: int | None = None
    """A full queue refuses events; RabbitMQ's own default is to drop the oldest message."""
    passive: bool = False
    """Only check that it exists: for a user without the permission to configure it. The other
    fields are taken to be true."""
    arguments: Mapping[str, FieldValue] = field(default_factory=dict)
    """Other arguments by RabbitMQ's names; they override the fields above."""

    def all_arguments(self) -> dict[str, FieldValue]:
        arguments: dict[str, FieldValue] = {}
        if self.kind != "classic":
            arguments["x-queue-type"] = self.kind
            arguments["x-delivery-limit"] = _NO_DELIVERY_LIMIT
        if self.single_active_consumer:
            arguments["x-single-active-consumer"] = True
        if self.dead_letter_exchange is not None:
            arguments["x-dead-letter-exchange"] = self.dead_letter_exchange
        if self.max_length is not None:
            arguments |= {"x-max-length": self.max_length, "x-overflow": "reject-publish"}
        return arguments | dict(self.arguments)


@dataclass(frozen=True)
class Topology:
    """What publisher and source declare when they open; the rest of the broker stays as it is."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()

    def with_exchange(self, name: str, *, passive: bool = False) -> Topology:
        """A copy with a durable topic exchange of that name, unless it has one."""
        if any(exchange.name == name for exchange in self.exchanges):
            return self
        return Topology((Exchange(name, passive=passive), *self.exchanges), self.queues)

    def with_queue(self, queue: Queue) -> Topology:
        """A copy with this queue, unless it has one of that name."""
        if any(each.name == queue.name for each in self.queues):
            return self
        return Topology(self.exchanges, (*self.queues, queue))


def declarations(topology: Topology) -> tuple[Method, ...]:
    """The AMQP methods that declare it: exchanges first, since queues are bound to them."""
    try:
        made = tuple(_declarations(topology))
        for method in made:
            marshal_method(method)
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        # Other texts quote the value of an argument.
        why = str(error) if _SAFE_TEXT.fullmatch(str(error)) else type(error).__name__
        raise ConfigurationError(f"topology that AMQP cannot express: {why}") from error
    return made


def declaration(part: Exchange | Queue) -> Method:
    """The AMQP method that declares it, without its bindings."""
    if isinstance(part, Exchange):
        return methods.Exchange.Declare(
            exchange=part.name,
            exchange_type=part.kind,
            durable=part.durable,
            passive=part.passive,
            arguments=dict(part.arguments),
        )
    return methods.Queue.Declare(
        queue=part.name, durable=True, passive=part.passive, arguments=part.all_arguments()
    )


def _declarations(topology: Topology) -> Iterator[Method]:
    yield from map(declaration, topology.exchanges)
    for queue in topology.queues:
        yield declaration(queue)
        for binding in () if queue.passive else queue.bindings:
            yield methods.Queue.Bind(
                queue=queue.name, exchange=binding.exchange, routing_key=binding.routing_key
            )
