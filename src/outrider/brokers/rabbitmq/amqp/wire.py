"""One AMQP 0-9-1 connection with one channel in confirm mode: only what our two sides need."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from pamqp import commands, frame
from pamqp.base import Frame

from outrider.brokers.rabbitmq.amqp.content import Content, Message, delivered_message
from outrider.brokers.rabbitmq.amqp.errors import (
    ClosedByBroker,
    ConnectionLost,
    blocked_reason,
    code_name,
)
from outrider.brokers.rabbitmq.amqp.frames import (
    BODY,
    CHANNEL,
    FRAME,
    FRAME_END,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
)
from outrider.brokers.rabbitmq.amqp.properties import MESSAGE_ID, read_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

F = TypeVar("F", bound=Frame)

MAX_FRAME_BYTES: Final = 131_072
NACKED: Final = "nacked: a queue is full, or has failed"

_CLOSE_TIMEOUT_S: Final = 1.0
_HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_CLOSE: Final = frame.marshal(
    commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0), 0
)
_CLOSE_OK: Final = frame.marshal(commands.Connection.CloseOk(), 0)
_CHANNEL_CLOSE_OK: Final = frame.marshal(commands.Channel.CloseOk(), CHANNEL)

_INDEX: Final = struct.Struct(">I")
_CONFIRM: Final = struct.Struct(">QB")
_ACK: Final = commands.Basic.Ack.index
_NACK: Final = commands.Basic.Nack.index
_DELIVER: Final = commands.Basic.Deliver.index
_GET_OK: Final = commands.Basic.GetOk.index
_RETURN: Final = commands.Basic.Return.index


class Sender(Protocol):
    """Learns what became of the messages that it published."""

    def message_of(self, index: int, /) -> tuple[str, str]:
        """Its message id and routing key, by which a returned message is found again."""

    def confirmed(self, index: int, refusal: str | None, /) -> None: ...
    def lost(self, error: ConnectionLost, /) -> None: ...


class Receiver(Protocol):
    """Gets what a queue delivers."""

    def received(self, message: Message, /) -> None: ...
    def lost(self, error: ConnectionLost, /) -> None: ...


class Wire(asyncio.Protocol):
    """Sends frames, counts confirms and joins the frames of deliveries.

    Once `error` is set, the wire is of no use any more.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)
        self._closed = self._loop.create_future()
        self.error: ConnectionLost | None = None
        self.blocked: str | None = None
        """Why the broker takes no messages at the moment."""
        self.frame_max = MAX_FRAME_BYTES
        self.receiver: Receiver | None = None
        self._unread = b""
        self._answer: asyncio.Future[Frame] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._write_paused = False
        self._last_tag = 0
        self._oldest_tag = 1
        self._unconfirmed: dict[int, tuple[Sender, int]] = {}
        self._content: Content | None = None
        self._got_body = b""
        self._returned: dict[tuple[str, str], list[str]] = {}
        self._heartbeat = 0
        self._last_read = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, request: Frame | bytes, answer: type[F], channel: int = 0) -> F:
        """Send a method and wait for the method that answers it; one call at a time.

        A cancelled call ends the connection: its answer may still arrive, and would be taken for
        the answer to the next call.
        """
        if self.error is not None:
            raise self.error
        self._answer = self._loop.create_future()
        try:
            self.send(request, channel)
            found = await self._answer
        except asyncio.CancelledError:
            self.drop(ConnectionLost("a call on the same connection was given up"))
            raise
        finally:
            self._answer = None
        if not isinstance(found, answer):
            self.drop(ConnectionLost(f"{answer.name} expected, {found.name} received"))
            raise cast("ConnectionLost", self.error)
        return found

    async def get(self, queue: str) -> tuple[int, bytes] | None:
        """Tag and body of the oldest message of a queue; None if it is empty."""
        answer = await self.call(commands.Basic.Get(queue=queue), Frame, CHANNEL)
        if isinstance(answer, commands.Basic.GetOk):
            return answer.delivery_tag or 0, self._got_body
        return None

    def send(self, method: Frame | bytes, channel: int = 0) -> None:
        data = method if isinstance(method, bytes) else frame.marshal(method, channel)
        self._transport.write(data)

    async def writable(self) -> None:
        """Wait while the broker blocks this connection or reads too slowly (backpressure)."""
        while not self._writable.is_set():
            await self._writable.wait()
        if self.error is not None:
            raise self.error

    def publish(self, messages: bytes, sender: Sender, indexes: Sequence[int]) -> None:
        """Write whole messages, one for each index; the sender gets one confirm for each."""
        for tag, index in enumerate(indexes, self._last_tag + 1):
            self._unconfirmed[tag] = (sender, index)
        self._last_tag += len(indexes)
        self._transport.write(messages)

    def start_heartbeat(self, seconds: int) -> None:
        """Send heartbeats from now on, and expect them; 0 means neither."""
        self._heartbeat = seconds
        if seconds:
            self._timer = self._loop.call_later(seconds / 2, self._on_timer)

    @property
    def has_heartbeat(self) -> bool:
        """Whether a broker that died silently would be noticed."""
        return self._heartbeat > 0

    def drop(self, error: ConnectionLost, farewell: bytes = b"") -> None:
        """End the connection now, and tell everybody who waits for it."""
        if self.error is not None:
            return
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        if farewell and not self._transport.is_closing():
            # The broker answers once it has read the farewell; it may never read again, though.
            self._transport.write(farewell)
            self._loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)
        else:
            self._transport.abort()
        self._writable.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        senders = {id(sender): sender for sender, _ in self._unconfirmed.values()}
        self._unconfirmed.clear()
        for sender in senders.values():
            sender.lost(error)
        if self.receiver is not None:
            self.receiver.lost(error)

    def abort(self, error: ConnectionLost) -> None:
        """As `drop`, and closes the socket at once even if a farewell is on its way."""
        self.drop(error)
        self._transport.abort()

    async def close(self) -> None:
        self.drop(ConnectionLost("closed by us"), _CLOSE)
        await asyncio.wait([self._closed], timeout=2 * _CLOSE_TIMEOUT_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else "end of stream"
        self.drop(ConnectionLost(f"connection lost: {why}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_writable()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._update_writable()

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            if data.endswith(_CLOSE_OK):
                self._transport.close()
            return
        self._last_read = self._loop.time()
        try:
            self._unread = self._read(self._unread + data if self._unread else data)
        except Exception as error:  # noqa: BLE001 - any error means that the stream is corrupt
            self.drop(ConnectionLost(f"its bytes are no AMQP 0-9-1 ({type(error).__name__})"))

    def _on_timer(self) -> None:
        silent = self._loop.time() - self._last_read
        if silent > 2 * self._heartbeat:
            self.drop(ConnectionLost(f"no sign of life for {silent:.0f} s"))
            return
        self._transport.write(_HEARTBEAT)
        self._timer = self._loop.call_later(self._heartbeat / 2, self._on_timer)

    def _read(self, data: bytes) -> bytes:
        """Handle all complete frames; return the beginning of the next one."""
        position, end = 0, len(data)
        while end - position >= FRAME_OVERHEAD and self.error is None:
            kind, _, size = FRAME.unpack_from(data, position)
            after = position + size + FRAME_OVERHEAD
            if size > self.frame_max or kind not in (METHOD, HEADER, BODY, HEARTBEAT):
                raise ValueError("no frame")
            if after > end:
                break
            if data[after - 1] != FRAME_END:
                raise ValueError("no end of frame")
            if kind == METHOD:
                self._on_method(data, position, after)
            elif kind != HEARTBEAT:
                self._on_content(kind, data[position + FRAME_OVERHEAD - 1 : after - 1])
            position = after
        return data[position:]

    def _on_method(self, data: bytes, start: int, end: int) -> None:
        (index,) = _INDEX.unpack_from(data, start + 7)
        if index in (_ACK, _NACK):
            tag, bits = _CONFIRM.unpack_from(data, start + 11)
            self._confirm(tag, multiple=bool(bits & 1), refusal=NACKED if index == _NACK else None)
            return
        if index in (_DELIVER, _RETURN, _GET_OK):
            self._content = Content(index, data[start + 11 : end - 1])
            return
        method = cast("Frame", frame.unmarshal(data[start:end])[2])
        match method:
            case commands.Basic.Cancel():
                gone = ConnectionLost("the broker ended the subscription: its queue is gone")
                self.drop(gone, _CLOSE)
            case commands.Connection.Blocked():
                self.blocked = blocked_reason(method.reason)
                self._update_writable()
            case commands.Connection.Unblocked():
                self.blocked = None
                self._update_writable()
            case commands.Connection.Close():
                self.drop(ClosedByBroker(method.reply_code or 0, method.reply_text), _CLOSE_OK)
            case commands.Channel.Close():
                farewell = _CHANNEL_CLOSE_OK + _CLOSE
                self.drop(ClosedByBroker(method.reply_code or 0, method.reply_text), farewell)
            case _ if self._answer is not None and not self._answer.done():
                self._answer.set_result(method)
            case _:
                raise ValueError("not asked for")

    def _confirm(self, tag: int, *, multiple: bool, refusal: str | None) -> None:
        if tag > self._last_tag:
            raise ValueError("nothing was sent under this tag")
        tags: Iterable[int] = (tag,)
        if multiple:
            tag = tag or self._last_tag
            tags = range(self._oldest_tag, tag + 1)
            self._oldest_tag = max(self._oldest_tag, tag + 1)
        for each in tags:
            found = self._unconfirmed.pop(each, None)
            if found is not None:
                sender, index = found
                returned = self._take_returned(sender, index) if self._returned else None
                sender.confirmed(index, refusal or returned)

    def _on_content(self, kind: int, payload: bytes) -> None:
        content = self._content
        if content is None:
            raise ValueError("content without a method")
        if kind == HEADER:
            content.add_header(payload)
        else:
            content.add_piece(payload)
        if content.missing:
            return
        self._content = None
        if content.method == _RETURN:
            self._on_returned(content)
        elif content.method == _GET_OK:
            self._on_got(content)
        elif self.receiver is not None:
            message = delivered_message(content.arguments, content.header, content.body)
            self.receiver.received(message)
        else:
            raise ValueError("a delivery that nobody asked for")

    def _on_got(self, content: Content) -> None:
        if self._answer is None or self._answer.done():
            raise ValueError("not asked for")
        got = commands.Basic.GetOk()
        got.unmarshal(content.arguments)
        self._got_body = content.body
        self._answer.set_result(got)

    def _on_returned(self, content: Content) -> None:
        """A return comes before its confirm, and has no tag: the message itself identifies it."""
        returned = commands.Basic.Return()
        returned.unmarshal(content.arguments)
        key = returned.routing_key or ""
        message_id = (
            read_properties(content.header).get(MESSAGE_ID, b"\0")[1:].decode(errors="replace")
        )
        name, exchange = code_name(returned.reply_code or 0), returned.exchange or ""
        reason = f"unroutable: {name}, exchange {exchange!r} has no queue for {key!r}"
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

    def _update_writable(self) -> None:
        if self.error is None and (self._write_paused or self.blocked is not None):
            self._writable.clear()
        else:
            self._writable.set()
