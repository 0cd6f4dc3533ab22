"""What a source declares, whether it consumes exclusively, and where its dead letters go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outrider.brokers.rabbitmq.topology import Queue, Topology, declarations
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from outrider.brokers.rabbitmq.amqp import Method


@dataclass(frozen=True)
class QueuePlan:
    """One way to receive from a queue."""

    declarations: tuple[Method, ...]
    exclusive: bool
    """Whether the source must consume exclusively, because the broker lets many consumers in."""
    dead_letter_exchange: str
    dead_letter_key: str | None
    """None keeps the routing key of each message."""


def queue_plans(
    name: str, topology: Topology, dead_letters: str | None, *, ordered: bool
) -> list[QueuePlan]:
    """To be tried in this order: the next one if the queue exists with other arguments."""
    if not name:
        raise ConfigurationError("RabbitMQSource: the queue needs a name")
    if dead_letters == "":
        raise ConfigurationError("RabbitMQSource: dead_letters needs the name of an exchange")
    choices = [queue for queue in topology.queues if queue.name == name]
    if not choices:
        plain = Queue(name)
        single = replace(plain, single_active_consumer=True)
        choices = [single, plain] if ordered else [plain]
    return [_plan(queue, topology, dead_letters, ordered=ordered) for queue in choices]


def _plan(
    queue: Queue, topology: Topology, dead_letters: str | None, *, ordered: bool
) -> QueuePlan:
    exclusive = ordered and _must_be_exclusive(queue)
    if exclusive:
        # Explicit, since the default queue type of a vhost may be one that lets many consumers in.
        queue = replace(queue, arguments={"x-queue-type": "classic", **queue.arguments})
    others = (each for each in topology.queues if each.name != queue.name)
    topology = Topology(topology.exchanges, (queue, *others))
    for binding in () if queue.passive else queue.bindings:
        # Publisher or source may start first; RabbitMQ's own exchanges (amq.…) always exist.
        if not binding.exchange.startswith("amq."):
            topology = topology.with_exchange(binding.exchange)
    exchange, key = _dead_letter_target(queue, dead_letters)
    if exchange:
        topology = topology.with_exchange(exchange, passive=True)
    elif key == f"{queue.name}.dlq":
        topology = topology.with_queue(Queue(key))
    topology = topology.with_queue(Queue(crashes_queue(queue.name), kind=queue.kind))
    return QueuePlan(declarations(topology), exclusive, exchange, key)


def crashes_queue(name: str) -> str:
    """Where a source keeps which messages killed processes."""
    return f"{name}.crashes"


def _must_be_exclusive(queue: Queue) -> bool:
    arguments = queue.all_arguments()
    if arguments.get("x-single-active-consumer"):
        return False
    if arguments.get("x-queue-type", "classic") != "classic":
        raise ConfigurationError(
            f"RabbitMQSource: {queue.name} lets many consumers in at once: give its Queue "
            "single_active_consumer=True, or the source ordered=False"
        )
    return True


def _dead_letter_target(queue: Queue, dead_letters: str | None) -> tuple[str, str | None]:
    """Exchange and routing key; a key of None keeps that of each message."""
    if dead_letters is not None:
        return dead_letters, None
    arguments = queue.all_arguments()
    if (exchange := arguments.get("x-dead-letter-exchange")) is not None:
        key = arguments.get("x-dead-letter-routing-key")
        return str(exchange), None if key is None else str(key)
    return "", f"{queue.name}.dlq"
