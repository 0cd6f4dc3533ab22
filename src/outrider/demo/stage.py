"""The demo as a whole: starts all parts, reports what they do, breaks and repairs them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy.ext.asyncio import async_sessionmaker

from outrider.admin.filters import EventFilter
from outrider.admin.inspector import OutboxInspector
from outrider.admin.repair import OutboxRepair
from outrider.consumer.consumer import ConsumerConfig, EventConsumer
from outrider.consumer.sql_inbox import SqlInbox
from outrider.demo.broker import POISON, LocalBroker
from outrider.demo.messaging.app import create_app
from outrider.demo.messaging.models import OUTBOX, OUTBOX_NAMES, OUTBOX_TABLES, Base
from outrider.demo.messaging.settings import Settings
from outrider.demo.notifications import METADATA, Notify, read_notifications
from outrider.demo.relay import BROKER, CRASH, DATABASE
from outrider.demo.supervisor import Supervisor
from outrider.demo.users import Users
from outrider.events.event import DomainEvent
from outrider.ports import DEFAULT_SINK
from outrider.signals import EventHandled, Signal
from outrider.store.engines import open_engine
from outrider.store.schema.migrate import create_all
from outrider.stream import StreamConfig, StreamManager
from outrider.stream.delivered import SqlDeliveredEvents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from outrider.demo.servers import RabbitBroker
    from outrider.events.strict_json import JsonObject
    from outrider.ports import EventSource

_MAX_ROWS: Final = 10
_POLL_INTERVAL: Final = timedelta(milliseconds=200)
_STATUSES: Final = ("pending", "retrying", "failed", "published")


class Demo:
    """The messaging application, its users, a relay process, a broker, consumers, a stream."""

    def __init__(
        self, *, database: str, broker: LocalBroker | RabbitBroker, port: int, folder: Path
    ) -> None:
        self.engine, self.broker = open_engine(database), broker
        self._crash_request = folder / "crash"
        # With a RabbitMQ URL, the application runs no relay of its own.
        self.api = create_app(Settings(database_url=database, rabbitmq_url=broker.url))
        self.users = Users(f"http://127.0.0.1:{port}/api")
        environment = {DATABASE: database, BROKER: broker.url, CRASH: str(self._crash_request)}
        self.relay = Supervisor(environment)
        delivered = SqlDeliveredEvents(self.engine, OUTBOX_TABLES, sink=DEFAULT_SINK)
        self.stream = StreamManager(delivered, StreamConfig(poll_interval=_POLL_INTERVAL))
        self.broken, self.duplicates = False, 0
        self._poisons: list[str] = []
        self._sessions = async_sessionmaker(self.engine)
        self._inspector = OutboxInspector(self.engine, OUTBOX_TABLES)
        self._consumers = [self._consumer(source) for source in broker.sources()]
        self._traffic: asyncio.Task[None]

    def _consumer(self, source: EventSource) -> EventConsumer:
        inbox = SqlInbox(self._sessions, OUTBOX_TABLES)
        config = ConsumerConfig(grace=timedelta(seconds=5))
        notify = [("*", Notify())]
        return EventConsumer(source, notify, config, inbox=inbox, on_signal=self._count_duplicates)

    def _count_duplicates(self, signal: Signal) -> None:
        if isinstance(signal, EventHandled):
            self.duplicates += signal.outcome == "duplicate"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.engine.dispose)
            await self._create_tables()
            await stack.enter_async_context(self.api.router.lifespan_context(self.api))
            for part in (self.stream, *self._consumers):
                await stack.enter_async_context(part)
            self._traffic = asyncio.create_task(self.users.run())
            for task in (asyncio.create_task(self.relay.run()), self._traffic):
                stack.push_async_callback(_cancel, task)
            stack.push_async_callback(self.broker.start)  # clients cannot close a paused broker
            yield

    async def _create_tables(self) -> None:
        await create_all(self.engine, OUTBOX_NAMES)
        async with self.engine.begin() as connection:
            for metadata in (Base.metadata, METADATA):
                await connection.run_sync(metadata.create_all)

    async def state(self) -> JsonObject:
        """What the page shows besides the messages, which it reads from the example's API."""
        filters = {name: EventFilter(status=name) for name in _STATUSES} | {
            "recorded": EventFilter()
        }
        counts = {name: await self._inspector.count(wanted) for name, wanted in filters.items()}
        handled, effects = await read_notifications(self.engine, _MAX_ROWS)
        outbox = (await self._inspector.events(EventFilter(), limit=_MAX_ROWS)).events
        columns = ("position", "event_type", "aggregate_id", "status", "retry_count")
        return {
            "counts": counts,
            "broker": {"name": self.broker.name, "broken": self.broken},
            "relay": {"alive": self.relay.alive, "starts": self.relay.starts},
            "database": self.engine.dialect.name,
            "handled": handled,
            "duplicates": self.duplicates,
            "poisons": self._poisons,
            "outbox": [{name: getattr(event, name) for name in columns} for event in outbox],
            "effects": effects,
        }

    async def run_action(self, action: str) -> None:
        """The action of a button on the page; raises KeyError if there is none of this name."""
        actions = {
            "break": self._break,
            "repair": self._repair,
            "crash": self._crash_relay,
            "poison": self._poison,
        }
        await actions[action]()

    async def _break(self) -> None:
        await self.broker.stop()
        self.broken = True

    async def _repair(self) -> None:
        await self.broker.start()
        self.broken = False
        for event_type in self._poisons:
            await self.broker.bind(event_type)
        await OutboxRepair(self.engine, OUTBOX_TABLES, who="demo").retry(EventFilter())

    async def _crash_relay(self) -> None:
        self._crash_request.touch()
        await self.users.send()  # the relay crashes with this event, or with an earlier one

    async def _poison(self) -> None:
        """Record an event that the broker refuses; only events of its message wait behind it."""
        message = await self.users.send()
        self._poisons.append(f"{POISON}{len(self._poisons) + 1}")
        poison = DomainEvent(self._poisons[-1], "group_message", message["id"], {})
        async with self._sessions() as session, session.begin():
            OUTBOX.record(session, poison)
        await self.users.queue(message)

    async def stop_traffic(self) -> None:
        self.users.stopping.set()
        await self._traffic


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
