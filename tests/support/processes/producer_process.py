"""A producer to be killed: transactions in a tight loop, each announced on a pipe.

The process that is started only imports and forks, so that each of its children is at work within
milliseconds: it gets a pipe and a task over a socket, and answers with the child's process id.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine, create_engine, event, insert, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outrider import DomainEvent, EventBus
from outrider.recording.outbox import Outbox

DRIVERS = {
    "postgresql": ("postgresql+asyncpg", "postgresql+psycopg"),
    "sqlite": ("sqlite+aiosqlite", "sqlite+pysqlite"),
}
UNDONE = "-undone"

outbox = Outbox()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)


def placed(order: str) -> DomainEvent:
    return DomainEvent("order.placed", "order", order, {"note": "of interest"})


def with_savepoints(engine: Engine) -> Engine:
    """What SQLAlchemy's manual asks for when SQLite shall have savepoints."""
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def leave_begin_to_us(connection: Any, _: object) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


class Producer:
    """Every way to write; the parent is told where each transaction is."""

    def __init__(self, url: str, name: str, pipe: int) -> None:
        target = make_url(url)
        waiting, blocking = DRIVERS[target.get_backend_name()]
        self.engine = create_async_engine(target.set(drivername=waiting))
        self.sync_engine = with_savepoints(create_engine(target.set(drivername=blocking)))
        with_savepoints(self.engine.sync_engine)
        for engine in self.engine.sync_engine, self.sync_engine:
            event.listen(engine, "commit", lambda _: self.tell("committing", self.order))
        self.name, self.pipe, self.order = name, pipe, ""

    def about(self, order: str) -> None:
        self.tell("about", order)
        self.order = order

    def tell(self, what: str, order: str) -> None:
        os.write(self.pipe, f"{what} {order}\n".encode())

    async def run(self, chance: random.Random) -> None:
        number = 0
        while True:
            ways = list(WAYS)
            chance.shuffle(ways)
            for way in ways:
                number += 1
                await way(self, f"{self.name}.{number}.{way.__name__}")
                self.tell("done", self.order)


async def session_with_begin(producer: Producer, order: str) -> None:
    async with AsyncSession(producer.engine) as session, session.begin():
        session.add(Order(id=order))
        outbox.record(session, placed(order))
        producer.about(order)


async def session_with_commit(producer: Producer, order: str) -> None:
    async with AsyncSession(producer.engine) as session:
        session.add(Order(id=order))
        await session.flush()
        outbox.record(session, placed(order))
        producer.about(order)
        await session.commit()


async def bus_with_flush(producer: Producer, order: str) -> None:
    bus = EventBus()
    async with AsyncSession(producer.engine) as session:
        session.add(Order(id=order))
        bus.emit(placed(order))
        await outbox.flush(session, bus, request_id=order)
        producer.about(order)
        await session.commit()


async def bare_connection(producer: Producer, order: str) -> None:
    async with producer.engine.begin() as connection:
        outbox.record(connection, placed(order))
        await connection.execute(insert(Order).values(id=order))
        producer.about(order)


async def plain_session(producer: Producer, order: str) -> None:
    with Session(producer.sync_engine) as session, session.begin():
        session.add(Order(id=order))
        outbox.record(session, placed(order))
        producer.about(order)


async def rolled_back(producer: Producer, order: str) -> None:
    async with AsyncSession(producer.engine) as session:
        session.add(Order(id=order + UNDONE))
        outbox.record(session, placed(order + UNDONE))
        await session.flush()
        producer.about(order + UNDONE)
        await session.rollback()


async def raised_in_block(producer: Producer, order: str) -> None:
    with suppress(LookupError):
        async with producer.engine.begin() as connection:
            await connection.execute(insert(Order).values(id=order + UNDONE))
            outbox.record(connection, placed(order + UNDONE))
            producer.about(order + UNDONE)
            raise LookupError


async def savepoint_rolled_back(producer: Producer, order: str) -> None:
    async with AsyncSession(producer.engine) as session, session.begin():
        session.add(Order(id=order))
        outbox.record(session, placed(order))
        async with session.begin_nested() as savepoint:
            session.add(Order(id=order + UNDONE))
            outbox.record(session, placed(order + UNDONE))
            await session.flush()
            await savepoint.rollback()
        producer.about(order)


WAYS: list[Callable[[Producer, str], Awaitable[None]]] = [
    session_with_begin,
    session_with_commit,
    bus_with_flush,
    bare_connection,
    plain_session,
    savepoint_rolled_back,
    rolled_back,
    raised_in_block,
]


def fork_producers(control: socket.socket, url: str) -> None:
    while True:
        task, pipes, _, _ = socket.recv_fds(control, 128, 1)
        if not task:
            return
        if (pid := os.fork()) == 0:
            control.close()
            name, seed = task.decode().split()
            try:
                asyncio.run(Producer(url, name, pipes[0]).run(random.Random(seed)))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(pipes[0])
        control.sendall(f"{pid}\n".encode())
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        fork_producers(control, sys.argv[2])
