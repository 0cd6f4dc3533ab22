"""Whether the topology is there, and whether a confirmed event survives in it.

AMQP shows neither the bindings of a queue nor its settings. A missing binding shows as an event
that waits; the settings are those that the topology names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from outrider.brokers.rabbitmq.amqp import CHANNEL, ClosedByBroker, ConnectionLost, Method
from outrider.brokers.rabbitmq.connection import translate
from outrider.brokers.rabbitmq.topology import Exchange, Topology, declaration
from outrider.ports import CheckResult

if TYPE_CHECKING:
    from outrider.brokers.rabbitmq.connection import Connection
    from outrider.brokers.rabbitmq.topology import Queue

_NOT_FOUND: Final = 404
_NODE_IS_DOWN: Final = "is down"


async def check_topology(connection: Connection, topology: Topology) -> list[CheckResult]:
    """Creates nothing. Raises ConfigurationError if something exists with other arguments."""
    parts: tuple[Exchange | Queue, ...] = (*topology.exchanges, *topology.queues)
    missing = [part for part in parts if not await _exists(connection, part)]
    there = Topology(
        tuple(each for each in topology.exchanges if each not in missing),
        tuple(each for each in topology.queues if each not in missing),
    )
    return [*map(_missing, missing), *check_durability(there)]


async def _exists(connection: Connection, part: Exchange | Queue) -> bool:
    try:
        await _call(connection, declaration(replace(part, passive=True)))
        if not part.passive:
            # It exists, so this only compares its arguments.
            await _call(connection, declaration(part))
    except ConnectionLost as lost:
        if isinstance(lost, ClosedByBroker) and lost.code == _NOT_FOUND:
            return _NODE_IS_DOWN in lost.reply_text
        raise translate(lost, connection.address) from lost
    return True


async def _call(connection: Connection, method: Method) -> None:
    wire = await connection.wire()
    await wire.call(method, Method, CHANNEL)


def _missing(part: Exchange | Queue) -> CheckResult:
    kind = "exchange" if isinstance(part, Exchange) else "queue"
    text = f"{kind} {part.name} is missing: events for it wait"
    if part.passive:
        return CheckResult(f"{kind}s", "fault", text, "declare it: the topology says passive")
    cure = "start a relay or a consumer with this topology, which declares it"
    return CheckResult(f"{kind}s", "warning", text, cure)


def check_durability(topology: Topology) -> list[CheckResult]:
    transient = [exchange.name for exchange in topology.exchanges if not exchange.durable]
    found = [
        CheckResult("exchanges", "warning", f"{name} is gone after a restart", "make it durable")
        for name in transient
    ]
    if topology.exchanges and not transient:
        found.append(CheckResult("exchanges", "fine", "durable, and messages are persistent"))
    if not topology.queues:
        text = "queues of consumers cannot be checked from here; make them durable"
        return [*found, CheckResult("queues", "fine", text)]
    return [*found, *(_queue(queue) for queue in topology.queues)]


def _queue(queue: Queue) -> CheckResult:
    arguments = queue.all_arguments()
    limits = {"x-max-length", "x-max-length-bytes"} & set(arguments)
    if limits and arguments.get("x-overflow", "drop-head") == "drop-head":
        text = f"{queue.name} drops its oldest messages when it is full"
        return CheckResult("queues", "warning", text, "set x-overflow to reject-publish")
    if arguments.get("x-queue-type") == "quorum":
        return CheckResult("queues", "fine", f"{queue.name}: quorum, survives the loss of a node")
    text = f"{queue.name}: durable on one node; a quorum queue survives the loss of one"
    return CheckResult("queues", "fine", text)
