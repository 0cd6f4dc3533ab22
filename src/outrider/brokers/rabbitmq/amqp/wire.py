"""One AMQP 0-9-1 connection with one confirming channel: only what our two sides need."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from pamqp import commands, frame

from outrider.brokers.rabbitmq.amqp.content import Content
from outrider.brokers.rabbitmq.amqp.properties import MESSAGE_ID, read_properties
from outrider.brokers.rabbitmq.messages import CHANNEL, FRAME_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pamqp.base import Frame

F = TypeVar("F", bound="Frame")

_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
FRAME_MAX: Final = 131_072
_GRACE: Final = 1.0
_GOODBYE: Final = frame.marshal(
    commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0), 0
)
_LAST_WORD: Final = frame.marshal(commands.Connection.CloseOk(), 0)

_FRAME: Final = struct.Struct(">BHI")
_INDEX: Final = struct.Struct(">I")
_CONFIRM: Final = struct.Struct(">QB")
_METHOD, _CONTENT, _BODY, _BEAT, _END = 1, 2, 3, 8, 0xCE
_ACK: Final = commands.Basic.Ack.index
_NACK: Final = commands.Basic.Nack.index
_DELIVER: Final = commands.Basic.Deliver.index
_RETURN: Final = commands.Basic.Return.index

NACKED: Final = "nacked: a queue is full, or has failed"


class Lost(Exception):
    """The connection is gone; nobody can tell what became of the messages in flight."""


class Closed(Lost):
    """The broker itself closed the channel or the connection, and said why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"closed with code {code}")
        self.code = code


class Sender(Protocol):
    """Who hears what became of its messages."""

    def message_of(self, index: int, /) -> tuple[str, str]:
        """Its message id and routing key, by which a returned message is found again."""

    def confirmed(self, index: int, refusal: str | None, /) -> None: ...
    def lost(self, error: Lost, /) -> None: ...


class Receiver(Protocol):
    """Who hears what a queue delivers."""

    def received(self, arguments: bytes, header: bytes, body: bytes, /) -> None:
        """The arguments of the method that delivers, and the message without its frames."""

    def lost(self, error: Lost, /) -> None: ...


class Wire(asyncio.Protocol):
    """Sends frames, counts confirms and puts deliveries together.

    Once it has an `error` it is of no use any more.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)
        self._gone = self._loop.create_future()
        self.error: Lost | None = None
        self.blocked: str | None = None
        self.frame_max = FRAME_MAX
        self.receiver: Receiver | None = None
        self._unread = b""
        self._answer: asyncio.Future[Frame] | None = None
        self._free = asyncio.Event()
        self._free.set()
        self._paused = False
        self._tag = 0
        self._oldest = 1
        self._pending: dict[int, tuple[Sender, int]] = {}
        self._content: Content | None = None
        self._returned: dict[tuple[str, str], list[str]] = {}
        self._heartbeat = 0
        self._heard = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, request: Frame | bytes, answer: type[F], channel: int = 0) -> F:
        """Send a method and wait for the one that answers it; one call at a time.

        Given up, it ends the connection: the answer may still be on its way.
        """
        if self.error is not None:
            raise self.error
        self._answer = self._loop.create_future()
        try:
            self.send(request, channel)
            found = await self._answer
        except asyncio.CancelledError:
            self.drop(Lost("a call on the same connection was given up"))
            raise
        finally:
            self._answer = None
        if not isinstance(found, answer):
            self.drop(Lost(f"{answer.name} expected, {found.name} received"))
            raise cast("Lost", self.error)
        return found

    def send(self, method: Frame | bytes, channel: int = 0) -> None:
        data = method if isinstance(method, bytes) else frame.marshal(method, channel)
        self._transport.write(data)

    async def free(self) -> None:
        """Wait while the broker blocks us or reads too slowly."""
        while not self._free.is_set():
            await self._free.wait()
        if self.error is not None:
            raise self.error

    def publish(self, messages: bytes, sender: Sender, indexes: Sequence[int]) -> None:
        """Write whole messages, one for each index; the sender hears of each once."""
        for tag, index in enumerate(indexes, self._tag + 1):
            self._pending[tag] = (sender, index)
        self._tag += len(indexes)
        self._transport.write(messages)

    def beat(self, seconds: int) -> None:
        """Show signs of life from now on, and expect them; 0 means neither."""
        self._heartbeat = seconds
        if seconds:
            self._timer = self._loop.call_later(seconds / 2, self._on_timer)

    @property
    def is_watched(self) -> bool:
        """Whether a broker that died silently would be noticed."""
        return self._heartbeat > 0

    def drop(self, error: Lost, farewell: bytes = b"") -> None:
        """End it now, and tell everybody who waits for anything."""
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        if farewell and not self._transport.is_closing():
            # The broker answers when it has read this; it may read no more, though.
            self._transport.write(farewell)
            self._loop.call_later(_GRACE, self._transport.abort)
        else:
            self._transport.abort()
        self._free.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        senders = {id(sender): sender for sender, _ in self._pending.values()}
        self._pending.clear()
        for sender in senders.values():
            sender.lost(error)
        if self.receiver is not None:
            self.receiver.lost(error)

    def abort(self, error: Lost) -> None:
        """As `drop`, without any good manners."""
        self.drop(error)
        self._transport.abort()

    async def close(self) -> None:
        self.drop(Lost("closed by us"), _GOODBYE)
        await asyncio.wait([self._gone], timeout=2 * _GRACE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "end of stream"
        self.drop(Lost(f"connection lost: {why}"))
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True
        self._update()

    def resume_writing(self) -> None:
        self._paused = False
        self._update()

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            if data.endswith(_LAST_WORD):
                self._transport.close()
            return
        self._heard = self._loop.time()
        try:
            self._unread = self._read(self._unread + data if self._unread else data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the stream makes no sense now
            self.drop(Lost(f"its bytes are no AMQP 0-9-1 ({type(error).__name__})"))

    def _on_timer(self) -> None:
        silent = self._loop.time() - self._heard
        if silent > 2 * self._heartbeat:
            self.drop(Lost(f"no sign of life for {silent:.0f} s"))
            return
        self._transport.write(_HEARTBEAT)
        self._timer = self._loop.call_later(self._heartbeat / 2, self._on_timer)

    def _read(self, data: bytes) -> bytes:
        """Handle all complete frames; return the beginning of the next."""
        position, end = 0, len(data)
        while end - position >= FRAME_OVERHEAD and self.error is None:
            kind, _, size = _FRAME.unpack_from(data, position)
            after = position + size + FRAME_OVERHEAD
            if size > self.frame_max or kind not in (_METHOD, _CONTENT, _BODY, _BEAT):
                raise ValueError("no frame")
            if after > end:
                break
            if data[after - 1] != _END:
                raise ValueError("no end of frame")
            if kind == _METHOD:
                self._on_method(data, position, after)
            elif kind != _BEAT:
                self._on_content(kind, data[position + FRAME_OVERHEAD - 1 : after - 1])
            position = after
        return data[position:]

    def _on_method(self, data: bytes, start: int, end: int) -> None:
        (index,) = _INDEX.unpack_from(data, start + 7)
        if index in (_ACK, _NACK):
            tag, bits = _CONFIRM.unpack_from(data, start + 11)
            self._confirm(tag, multiple=bool(bits & 1), refusal=NACKED if index == _NACK else None)
            return
        if index in (_DELIVER, _RETURN):
            self._content = Content(index, data[start + 11 : end - 1])
            return
        method = cast("Frame", frame.unmarshal(data[start:end])[2])
        match method:
            case commands.Basic.Cancel():
                self.drop(Lost("the broker ended the subscription: its queue is gone"), _GOODBYE)
            case commands.Connection.Blocked():
                self.blocked = method.reason or "no reason given"
                self._update()
            case commands.Connection.Unblocked():
                self.blocked = None
                self._update()
            case commands.Connection.Close():
                goodbye = frame.marshal(commands.Connection.CloseOk(), 0)
                self.drop(Closed(method.reply_code or 0, method.reply_text), goodbye)
            case commands.Channel.Close():
                goodbye = frame.marshal(commands.Channel.CloseOk(), CHANNEL) + _GOODBYE
                self.drop(Closed(method.reply_code or 0, method.reply_text), goodbye)
            case _ if self._answer is not None and not self._answer.done():
                self._answer.set_result(method)
            case _:
                raise ValueError("not asked for")

    def _confirm(self, tag: int, *, multiple: bool, refusal: str | None) -> None:
        if tag > self._tag:
            raise ValueError("nothing was sent under this tag")
        tags: Iterable[int] = (tag,)
        if multiple:
            tag = tag or self._tag
            tags = range(self._oldest, tag + 1)
            self._oldest = max(self._oldest, tag + 1)
        for each in tags:
            found = self._pending.pop(each, None)
            if found is not None:
                sender, index = found
                returned = self._take_returned(sender, index) if self._returned else None
                sender.confirmed(index, refusal or returned)

    def _on_content(self, kind: int, payload: bytes) -> None:
        content = self._content
        if content is None:
            raise ValueError("content without a method")
        if kind == _CONTENT:
            content.add_header(payload)
        else:
            content.add_piece(payload)
        if content.missing:
            return
        self._content = None
        if content.method == _RETURN:
            self._on_returned(content)
        elif self.receiver is not None:
            self.receiver.received(content.arguments, content.header, content.body)
        else:
            raise ValueError("a delivery that nobody asked for")

    def _on_returned(self, content: Content) -> None:
        """A return comes before its confirm, and carries no tag but the message itself."""
        returned = commands.Basic.Return()
        returned.unmarshal(content.arguments)
        key = returned.routing_key or ""
        message_id = (
            read_properties(content.header).get(MESSAGE_ID, b"\0")[1:].decode(errors="replace")
        )
        reason = f"unroutable: {returned.reply_text}, no queue takes {key!r}"
        self._returned.setdefault((message_id, key), []).append(reason)

    def _take_returned(self, sender: Sender, index: int) -> str | None:
        key = sender.message_of(index)
        reasons = self._returned.get(key)
        if reasons is None:
            return None
        reason = reasons.pop()
        if not reasons:
            del self._returned[key]
        return reason

    def _update(self) -> None:
        if self.error is None and (self._paused or self.blocked is not None):
            self._free.clear()
        else:
            self._free.set()
