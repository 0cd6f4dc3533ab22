"""Real servers for the demo: private instances that start and end with it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.ports import EventSource
    from outrider.testing.services import Server

_LIBRARIES: Final = {"postgres": "asyncpg", "rabbitmq": "pamqp"}
_QUEUES: Final = ("group_message_processing", "scheduled_message_processing")


@contextmanager
def private_servers(kinds: Sequence[str]) -> Iterator[dict[str, Server]]:
    """Start these servers; raises ConfigurationError that says how to install a missing one."""
    if not kinds:
        yield {}
        return
    needed = ["psutil", *(_LIBRARIES[kind] for kind in kinds)]
    if missing := [library for library in needed if find_spec(library) is None]:
        command = f"pip install 'outrider[{','.join(['demo', 'testing', *kinds])}]'"
        raise ConfigurationError(f"missing: {', '.join(missing)}; this brings it: {command}")
    from outrider.testing.services import ServerFailed, ServiceMissing, Services

    with Services(install=True) as services:
        try:
            with ThreadPoolExecutor() as threads:
                started = dict(zip(kinds, threads.map(services.another, kinds), strict=True))
        except (ServiceMissing, ServerFailed) as problem:
            raise ConfigurationError(str(problem)) from None
        yield started


class RabbitBroker:
    """A real RabbitMQ with the methods of LocalBroker and the topology of the example."""

    def __init__(self, server: Server) -> None:
        self._server, self.url = server, server.url
        self.name = f"RabbitMQ {server.version}"

    def sources(self) -> list[EventSource]:
        from outrider.brokers.rabbitmq import RabbitMQSource
        from outrider.demo.messaging.topology import TOPOLOGY

        return [RabbitMQSource(self.url, name, topology=TOPOLOGY) for name in _QUEUES]

    async def stop(self) -> None:
        """Pause all its processes: connections stay open, but nothing answers."""
        await asyncio.to_thread(self._server.pause)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.resume)

    async def bind(self, event_type: str) -> None:
        from outrider.brokers.rabbitmq import Binding, Queue, RabbitMQPublisher, Topology

        bound = (Binding("messaging", event_type),)
        queue = Queue(_QUEUES[0], bound, dead_letter_exchange="messaging.dlx")
        async with RabbitMQPublisher(self.url, topology=Topology(queues=(queue,))):
            pass  # opening it declares the queue
