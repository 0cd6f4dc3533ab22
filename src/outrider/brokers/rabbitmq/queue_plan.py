"""What a source declares, how it has one process at a time receive, and where dead letters go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outrider.brokers.rabbitmq.topology import Queue, Topology, declarations
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from pamqp.base import Frame


@dataclass(frozen=True)
class QueuePlan:
    """One way to receive from a queue."""

    declarations: tuple[Frame, ...]
    exclusive: bool
    """Whether it is for us to see to it that nobody else receives."""
    dead_letter_exchange: str
    dead_letter_key: str | None
    """None keeps the routing key of each message."""


def queue_plans(
    name: str, topology: Topology, dead_letter_exchange: str | None, *, ordered: bool
) -> list[QueuePlan]:
    """To be tried in this order, if the queue exists and is another one than the plan has it."""
    if not name:
        raise ConfigurationError("RabbitMQSource: the queue needs a name")
    choices = [queue for queue in topology.queues if queue.name == name]
    if not choices:
        plain = Queue(name)
        single = replace(plain, single_active_consumer=True)
        choices = [single, plain] if ordered else [plain]
    return [_plan(queue, topology, dead_letter_exchange, ordered=ordered) for queue in choices]


def _plan(
    queue: Queue, topology: Topology, dead_letter_exchange: str | None, *, ordered: bool
) -> QueuePlan:
    exclusive = ordered and _must_be_exclusive(queue)
    if exclusive:
        # Said aloud, as a broker may have another default that lets everybody in.
        queue = replace(queue, arguments={"x-queue-type": "classic", **queue.arguments})
    others = (each for each in topology.queues if each.name != queue.name)
    topology = Topology(topology.exchanges, (queue, *others))
    for binding in () if queue.passive else queue.bindings:
        # Either side may start first; what RabbitMQ brings along needs no declaration.
        if not binding.exchange.startswith("amq."):
            topology = topology.with_exchange(binding.exchange)
    exchange, key = _dead_letters(queue, dead_letter_exchange)
    if exchange:
        topology = topology.with_exchange(exchange, passive=True)
    elif key == f"{queue.name}.dlq":
        topology = topology.with_queue(Queue(key))
    return QueuePlan(declarations(topology), exclusive, exchange, key)


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


def _dead_letters(queue: Queue, wanted: str | None) -> tuple[str, str | None]:
    if wanted is not None:
        return wanted, None
    arguments = queue.all_arguments()
    if (exchange := arguments.get("x-dead-letter-exchange")) is not None:
        key = arguments.get("x-dead-letter-routing-key")
        return str(exchange), None if key is None else str(key)
    return "", f"{queue.name}.dlq"
