"""All parts of the demo together, what they show, and how each of them is broken and repaired."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

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
from outrider.demo.notifications import METADATA, Notify, notified
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
    from outrider.ports import EventSource

_SHOWN: Final = 10
_OFTEN: Final = timedelta(milliseconds=200)
_STATES: Final = ("pending", "retrying", "failed", "published")


class Demo:
    """The messaging application, its users, a relay process, a broker, consumers, a stream."""

    def __init__(
        self, *, database: str, broker: LocalBroker | RabbitBroker, port: int, folder: Path
    ) -> None:
        self.engine, self.broker, self._crash = open_engine(database), broker, folder / "crash"
        # To the application, a URL means that somebody else delivers.
        self.api = create_app(Settings(database_url=database, rabbitmq_url=broker.url))
        self.users = Users(f"http://127.0.0.1:{port}/api")
        told = {DATABASE: database, BROKER: broker.url, CRASH: str(self._crash)}
        self.relay = Supervisor(told)
        delivered = SqlDeliveredEvents(self.engine, OUTBOX_TABLES, sink=DEFAULT_SINK)
        self.stream = StreamManager(delivered, StreamConfig(poll_interval=_OFTEN))
        self.broken, self.duplicates = False, 0
        self._poisons: list[str] = []
        self._sessions = async_sessionmaker(self.engine)
        self._inspector = OutboxInspector(self.engine, OUTBOX_TABLES)
        self._consumers = [self._consumer(source) for source in broker.sources()]
        self._traffic: asyncio.Task[None]

    def _consumer(self, source: EventSource) -> EventConsumer:
        inbox = SqlInbox(self._sessions, OUTBOX_TABLES)
        quick = ConsumerConfig(grace=timedelta(seconds=5))
        notify = [("*", Notify())]
        return EventConsumer(source, notify, quick, inbox=inbox, on_signal=self._watch)

    def _watch(self, signal: Signal) -> None:
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
            self._traffic = asyncio.create_task(self.users.keep_busy())
            for task in (asyncio.create_task(self.relay.run()), self._traffic):
                stack.push_async_callback(_end, task)
            stack.push_async_callback(self.broker.start)  # nobody says goodbye to a broken one
            yield

    async def _create_tables(self) -> None:
        await create_all(self.engine, OUTBOX_NAMES)
        async with self.engine.begin() as connection:
            for metadata in (Base.metadata, METADATA):
                await connection.run_sync(metadata.create_all)

    async def state(self) -> dict[str, Any]:
        """The business goes by its own API; this is what happens to its events."""
        filters = {name: EventFilter(status=name) for name in _STATES} | {"recorded": EventFilter()}
        counts = {name: await self._inspector.count(wanted) for name, wanted in filters.items()}
        handled, effects = await notified(self.engine, _SHOWN)
        outbox = (await self._inspector.events(EventFilter(), limit=_SHOWN)).events
        lines = ("position", "event_type", "aggregate_id", "status", "retry_count")
        return {
            "counts": counts,
            "broker": {"name": self.broker.name, "broken": self.broken},
            "relay": {"alive": self.relay.alive, "starts": self.relay.starts},
            "database": self.engine.dialect.name,
            "handled": handled,
            "duplicates": self.duplicates,
            "poisons": self._poisons,
            "outbox": [{name: getattr(event, name) for name in lines} for event in outbox],
            "effects": effects,
        }

    async def act(self, action: str) -> None:
        """One of the page's buttons; KeyError if there is no such."""
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
        self._crash.touch()
        await self.users.send()  # dies with this one in hand, or with one before it

    async def _poison(self) -> None:
        """Its own message waits behind it, and no other does."""
        message = await self.users.send()
        self._poisons.append(f"{POISON}{len(self._poisons) + 1}")
        poison = DomainEvent(self._poisons[-1], "group_message", message["id"], {})
        async with self._sessions() as session, session.begin():
            OUTBOX.record(session, poison)
        await self.users.queue(message)

    async def rest(self) -> None:
        """No more traffic from now on."""
        self.users.enough.set()
        await self._traffic


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
