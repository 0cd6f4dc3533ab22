"""A NATS cluster of three servers on this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from outrider.testing.services import Nats, Services
from outrider.testing.services.ports import LOOPBACK, free_ports
from tests.support.until import until

SIZE = 3


class Node(Nats):
    """One server of the cluster, with the routes to the others."""

    own_route: ClassVar[int]
    routes: ClassVar[list[int]]

    def prepare(self) -> None:
        super().prepare()
        path = self.folder / "nats.conf"
        settings = json.loads(path.read_text())
        settings["cluster"] = {
            "name": "outrider",
            "listen": f"{LOOPBACK}:{self.own_route}",
            "routes": [f"nats-route://{LOOPBACK}:{port}" for port in self.routes],
        }
        path.write_text(json.dumps(settings))


class NatsCluster:
    def __init__(self, services: Services) -> None:
        routes = free_ports(SIZE)
        self.nodes: list[Node] = []
        for number, route in enumerate(routes):
            kind = type(f"Node{number}", (Node,), {"own_route": route, "routes": routes})
            self.nodes.append(services.another(kind))

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStreamContext]:
        """A client connected to any living node."""
        urls = [node.url for node in self.nodes if node.alive]
        options: dict[str, Any] = {"max_reconnect_attempts": 1, "error_cb": _ignore}
        client = Client()
        await client.connect(urls, allow_reconnect=False, **options)
        try:
            yield client.jetstream(timeout=2)
        finally:
            await client.close()

    async def ready(self) -> None:
        """Wait until the nodes have connected and elected a leader."""

        async def answers() -> bool:
            with suppress(Error, OSError):
                async with self.jetstream() as js:
                    return bool(await js.account_info())
            return False

        await until(answers, "the cluster has a leader")

    async def stream(self, name: str) -> StreamInfo | None:
        with suppress(Error, OSError):
            async with self.jetstream() as js:
                return await js.stream_info(name)
        return None

    async def leader_of(self, stream: str) -> Node:
        """The leader of the stream."""
        found: list[Node] = []

        async def known() -> bool:
            info = await self.stream(stream)
            leader = info.cluster.leader if info and info.cluster else None
            found[:] = [node for node in self.nodes if node.name == leader]
            return bool(found)

        await until(known, "the stream has a leader")
        return found[0]

    async def is_complete(self, stream: str) -> bool:
        """Wait until all replicas have all messages."""
        info = await self.stream(stream)
        replicas = (info.cluster.replicas if info and info.cluster else None) or []
        return len(replicas) == SIZE - 1 and all(peer.current for peer in replicas)

    async def stop(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(node.kill) for node in self.nodes))


async def _ignore(_: Exception) -> None: ...
