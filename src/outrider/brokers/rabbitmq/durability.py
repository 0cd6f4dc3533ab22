"""Whether a confirmed event survives, as far as the topology tells: AMQP shows no settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.ports import CheckResult

if TYPE_CHECKING:
    from outrider.brokers.rabbitmq.topology import Queue, Topology


def check_durability(topology: Topology) -> list[CheckResult]:
    transient = [exchange.name for exchange in topology.exchanges if not exchange.durable]
    found = [
        CheckResult("exchanges", "warning", f"{name} is gone after a restart", "make it durable")
        for name in transient
    ]
    if not transient:
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
