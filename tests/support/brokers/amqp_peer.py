"""A scripted AMQP 0-9-1 broker on the loopback address, for faults that no real broker shows."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

from pamqp import base, body, commands, frame, header

from outrider import EventEnvelope
from outrider.brokers.rabbitmq import RabbitMQConfig, RabbitMQPublisher
from tests.support.brokers.events import event

PASSWORD = "canary-password"


@dataclass
class Message:
    tag: int
    publish: commands.Basic.Publish
    header: header.ContentHeader
    body: bytes = b""
    frames: int = 0

    @property
    def is_complete(self) -> bool:
        return len(self.body) == self.header.body_size

    @property
    def id(self) -> str:
        return str(self.header.properties.message_id)


_ANSWERS: dict[type, Callable[[], base.Frame]] = {
    commands.Exchange.Declare: commands.Exchange.DeclareOk,
    commands.Queue.Bind: commands.Queue.BindOk,
    commands.Basic.Qos: commands.Basic.QosOk,
    commands.Basic.Get: commands.Basic.GetEmpty,
}


@dataclass
class Conversation:
    """One connection, from the broker's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: list[Message] = field(default_factory=list)
    heartbeats: int = 0
    something: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a message has arrived."""

    def say(self, method: base.Frame, channel: int = 1) -> None:
        self.writer.write(frame.marshal(method, channel))

    def cut_after(self, left: int) -> None:
        write = self.writer.write

        def some(data: bytes) -> None:
            nonlocal left
            write(data[:left])
            left -= len(data[:left])
            if not left:
                self.writer.close()

        self.writer.write = some  # type: ignore[assignment, method-assign]

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.say(commands.Basic.Ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False) -> None:
        self.say(commands.Basic.Nack(tag, multiple, requeue=False))

    def give_back(self, message: Message) -> None:
        exchange, key = message.publish.exchange, message.publish.routing_key
        self.say(commands.Basic.Return(312, "NO_ROUTE", exchange, key))
        self.writer.write(frame.marshal(message.header, 1))
        if message.body:
            self.writer.write(frame.marshal(body.ContentBody(message.body), 1))

    def close_channel(self, code: int, text: str) -> None:
        self.say(commands.Channel.Close(code, text, 60, 40))

    def deliver(self, tag: int, content: bytes, properties: commands.Basic.Properties) -> None:
        """A message of a queue, its body in pieces of at most a hundred bytes."""
        self.say(commands.Basic.Deliver("us", tag, exchange="shop", routing_key="order.placed"))
        found = header.ContentHeader(0, len(content), properties)
        self.writer.write(frame.marshal(found, 1))
        for at in range(0, len(content), 100):
            piece = body.ContentBody(content[at : at + 100])
            self.writer.write(frame.marshal(piece, 1))

    async def consumer(self, *, let_in: bool = True) -> None:
        """Answer all requests with success, until the client consumes.

        The client asks for counted crashes, and stores them, on a connection of its own.
        """
        tags = count(1)
        while True:
            match await self.read():
                case commands.Queue.Declare() as declare:
                    self.say(commands.Queue.DeclareOk(declare.queue, 0, 0))
                case commands.Basic.Publish():
                    self.ack(next(tags))
                case base.Frame() as method if answer := _ANSWERS.get(type(method)):
                    self.say(answer())
                case commands.Connection.Close():
                    raise ConnectionResetError
                case commands.Basic.Consume():
                    if let_in:
                        self.say(commands.Basic.ConsumeOk("us"))
                    return

    async def read(self) -> object:
        head = await self.reader.readexactly(7)
        kind, _, size = struct.unpack(">BHI", head)
        rest = await self.reader.readexactly(size + 1)
        return None if kind == 8 else frame.unmarshal(head + rest)[2]

    async def messages(self) -> AsyncIterator[Message]:
        """Every message when it is complete; a declaration is answered on the way."""
        message: Message | None = None
        while True:
            match await self.read():
                case None:
                    self.heartbeats += 1
                case commands.Exchange.Declare():
                    self.say(commands.Exchange.DeclareOk())
                case commands.Queue.Declare() as declare:
                    self.say(commands.Queue.DeclareOk(declare.queue, 0, 0))
                case commands.Basic.Get():
                    self.say(commands.Basic.GetEmpty())
                case commands.Basic.Publish() as publish:
                    message = Message(len(self.received) + 1, publish, header.ContentHeader(0, -1))
                case header.ContentHeader() as found:
                    assert message is not None
                    message.header = found
                case body.ContentBody() as part:
                    assert message is not None
                    message.body += part.value or b""
                    message.frames += 1
                case _:
                    return
            if message and message.is_complete:
                self.received.append(message)
                self.something.set()
                yield message
                message = None


Script = Callable[[Conversation], Awaitable[None]]


@dataclass
class Peer:
    script: Script
    frame_max: int = 131_072
    heartbeat: int = 60
    greets: bool = True
    cut_after: int | None = None
    """How many bytes the broker sends before it closes the connection."""
    port: int = 0
    conversations: list[Conversation] = field(default_factory=list)
    _tasks: set[asyncio.Task[None] | None] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"amqp://user:{PASSWORD}@127.0.0.1:{self.port}/"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = Conversation(reader, writer)
        self.conversations.append(talk)
        self._tasks.add(asyncio.current_task())
        if self.cut_after is not None:
            talk.cut_after(self.cut_after)
        try:
            if self.greets:
                await self._greet(talk)
            await self.script(talk)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def leave(self) -> None:
        for talk in self.conversations:
            talk.writer.close()
        if tasks := [task for task in self._tasks if task]:
            await asyncio.wait(tasks, timeout=5)
        for talk in self.conversations:
            with suppress(ConnectionError):
                await talk.writer.wait_closed()

    async def _greet(self, talk: Conversation) -> None:
        await talk.reader.readexactly(8)
        talk.say(commands.Connection.Start(0, 9, {}, "PLAIN", "en_US"), 0)
        await talk.read()
        talk.say(commands.Connection.Tune(10, self.frame_max, self.heartbeat), 0)
        await talk.read()
        await talk.read()
        talk.say(commands.Connection.OpenOk(), 0)
        await talk.read()
        talk.say(commands.Channel.OpenOk())
        await talk.read()
        talk.say(commands.Confirm.SelectOk())


@asynccontextmanager
async def listening(script: Script, **settings: int) -> AsyncIterator[Peer]:
    peer = Peer(script, **settings)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        await peer.leave()


@asynccontextmanager
async def publishing(
    url: str, *, seconds: float = 5, heartbeat: timedelta | None = None
) -> AsyncIterator[RabbitMQPublisher]:
    limit = timedelta(seconds=seconds)
    config = RabbitMQConfig(connect_timeout=limit, publish_timeout=limit, heartbeat=heartbeat)
    publisher = RabbitMQPublisher(url, exchange="shop", config=config)
    try:
        yield publisher
    finally:
        await publisher.close()


def envelope(
    aggregate: str = "a", data: bytes = b"{}", event_type: str = "order.placed"
) -> EventEnvelope:
    return event(aggregate, event_type, data)


async def acknowledge(talk: Conversation) -> None:
    """The script of a broker that confirms everything."""
    async for message in talk.messages():
        talk.ack(message.tag)


async def ignore(talk: Conversation) -> None:
    """The script of a broker that never answers."""
    async for _ in talk.messages():
        pass
