"""The relay of the demo, for `outrider relay`; it can crash between publish and settle."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outrider.demo.broker import HttpPublisher
from outrider.demo.messaging.models import OUTBOX_TABLES
from outrider.lifecycle import Openable, close_publisher, open_publisher
from outrider.relay.config import RelayConfig
from outrider.relay.relay import OutboxRelay
from outrider.relay.retry import ExponentialRetry
from outrider.store.engines import open_engine
from outrider.store.sql_store import SqlOutboxStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from outrider.events.envelope import EventEnvelope
    from outrider.ports import EventPublisher

DATABASE: Final = "OUTRIDER_DEMO_DATABASE"
BROKER: Final = "OUTRIDER_DEMO_BROKER"
CRASH: Final = "OUTRIDER_DEMO_CRASH"
"""The file whose existence requests the next crash."""
CONFIG: Final = RelayConfig(
    name="demo relay",
    poll_interval=timedelta(milliseconds=200),
    lease=timedelta(seconds=2),
    retry=ExponentialRetry(first=timedelta(seconds=1), cap=timedelta(seconds=2)),
    max_retries=3,
)


class CrashingPublisher(Openable):
    """Wraps a publisher; on request, kills the process after publish and before settle."""

    def __init__(self, publisher: EventPublisher, crash_request: Path) -> None:
        self._publisher, self._crash_request = publisher, crash_request

    def __str__(self) -> str:
        return str(self._publisher)

    async def open(self) -> None:
        await open_publisher(self._publisher)

    async def close(self) -> None:
        await close_publisher(self._publisher)

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        await self._publisher.publish_all(envelopes)
        with suppress(FileNotFoundError):
            self._crash_request.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


@asynccontextmanager
async def relay() -> AsyncIterator[OutboxRelay]:
    engine = open_engine(os.environ[DATABASE])
    publisher = CrashingPublisher(_publisher(os.environ[BROKER]), Path(os.environ[CRASH]))
    watching = asyncio.create_task(_stop_when_orphaned())
    try:
        store = SqlOutboxStore(engine, OUTBOX_TABLES, announce=True)
        # No log: the page shows what happens, and warnings would hide its address in the terminal.
        yield OutboxRelay(store, publisher, CONFIG, on_signal=lambda _: None)
    finally:
        watching.cancel()
        await engine.dispose()


def _publisher(url: str) -> EventPublisher:
    if url.startswith("http:"):
        return HttpPublisher(url)
    from outrider.brokers.rabbitmq import RabbitMQPublisher
    from outrider.demo.messaging.topology import TOPOLOGY

    return RabbitMQPublisher(url, topology=TOPOLOGY)


async def _stop_when_orphaned() -> None:
    """Stop when the demo's process is gone: a killed demo cannot stop its relay."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
