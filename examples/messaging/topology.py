"""Exchanges, queues and dead letters of this application, which its relay declares at its start."""

from outrider.brokers.rabbitmq import Binding, Exchange, Queue, Topology


def messaging_topology(exchange: str = "messaging", *, audit: bool = False) -> Topology:
    """A queue for group messages, one for scheduled messages, and one for dead letters."""
    dead_letters = f"{exchange}.dlx"

    def queue(name: str, routing_key: str) -> Queue:
        bindings = (Binding(exchange, routing_key),)
        return Queue(name, bindings, dead_letter_exchange=dead_letters)

    queues = [
        Queue(f"{exchange}.dlq", (Binding(dead_letters),)),
        queue("group_message_processing", "group_message.*"),
        queue("scheduled_message_processing", "scheduled_message.*"),
    ]
    if audit:
        queues.append(queue(f"{exchange}_audit", "#"))
    return Topology((Exchange(exchange), Exchange(dead_letters)), tuple(queues))


TOPOLOGY = messaging_topology()
"""For relays of another program: `outrider relay --rabbitmq-topology`."""
