"""One event from `record` to its effect: the files it passes through are those of the page."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

import outrider
from outrider import (
    DomainEvent,
    EventConsumer,
    Handlers,
    Outbox,
    OutboxRelay,
    SqlInbox,
    SqlOutboxStore,
    map_outbox,
)
from outrider.brokers.rabbitmq import Binding, Queue, RabbitMQPublisher, RabbitMQSource, Topology
from outrider.observability import BatchPublished, Signal
from outrider.testing.services import Services

SOURCE = Path(outrider.__file__).parent
MARK = "parcel-that-is-followed"
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


@dataclass(frozen=True, kw_only=True)
class ParcelSent(DomainEvent, type="parcel.sent"):
    parcel_id: str


def carries(value: object, depth: int = 4) -> bool:
    """Whether this is the event, in whatever shape, or holds it."""
    match value:
        case str():
            return MARK in value
        case bytes() | bytearray() | memoryview():
            return MARK.encode() in bytes(value)
        case _ if depth == 0:
            return False
        case dict():
            return any(carries(each, depth - 1) for each in [*value, *value.values()])
        case list() | tuple() | set() | deque() | asyncpg.Record():
            return any(carries(each, depth - 1) for each in list(value))
        case _:
            return any(carries(each, depth - 1) for each in fields_of(value))


def fields_of(value: object) -> list[object]:
    """What an object of the package, or of this test, is made of."""
    kind = type(value)
    if kind.__module__.partition(".")[0] not in ("outrider", "tests"):
        return []
    names = [*getattr(value, "__dict__", ()), *getattr(kind, "__slots__", ())]
    names += getattr(kind, "__struct_fields__", ())
    return [getattr(value, name, None) for name in names]


@contextmanager
def files_passed() -> Iterator[set[str]]:
    """The files of the package with a function that is given the event, in whatever thread.

    What an object holds as its own state does not count, unless that is all it is for.
    """
    found: set[str] = set()

    def note(frame: FrameType, what: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if what != "call" or not name.startswith(str(SOURCE)):
            return
        path = Path(name).relative_to(SOURCE).as_posix()
        given = {name: value for name, value in frame.f_locals.items() if name != "self"}
        if path not in found and carries(list(given.values())):
            found.add(path)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.mark.parametrize("database", ["postgresql+asyncpg"], indirect=True)
async def test_files_of_one_event_are_those_that_the_page_lists(
    database: AsyncEngine, services: Services
) -> None:
    # given a relay to RabbitMQ and a consumer with an inbox, connected and idle
    map_outbox()
    handlers, handled = Handlers(), asyncio.Event()

    @handlers.handles(ParcelSent)
    async def note_effect(event: ParcelSent, session: AsyncSession) -> None:
        handled.set()

    name = "journey"
    topology = Topology(queues=(Queue(name, (Binding(name),), single_active_consumer=True),))
    publisher = RabbitMQPublisher(services.rabbitmq.url, name, topology=topology)
    source = RabbitMQSource(services.rabbitmq.url, name, topology=topology)
    sessions = async_sessionmaker(database)
    consumer = EventConsumer(source, handlers, inbox=SqlInbox(sessions))
    settled = asyncio.Event()

    def on_signal(signal: Signal) -> None:
        if isinstance(signal, BatchPublished):
            settled.set()

    relay = OutboxRelay(SqlOutboxStore(database), publisher, on_signal=on_signal)
    async with relay, consumer:
        # when one event is recorded
        with files_passed() as passed:
            async with sessions() as session, session.begin():
                Outbox().record(session, ParcelSent(parcel_id=MARK))
            async with asyncio.timeout(60):
                await handled.wait()
                await settled.wait()

    # then
    section = PAGE.read_text().partition("## One event, file by file")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([\w/]+\.py)`", section))
    assert passed - listed == set(), "add them to the page, or keep the event out of them"
    assert listed - passed == set(), "the event does not come by these any more"
