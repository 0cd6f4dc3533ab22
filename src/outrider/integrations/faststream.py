"""FastStream: an inbox middleware, so that a message takes effect once with any broker.

It cannot help if a message is acknowledged before its handler is done. Give subscribers an
`ack_policy` of NACK_ON_ERROR or REJECT_ON_ERROR; the default for Kafka acknowledges first.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast
from urllib.parse import unquote

from sqlalchemy.ext.asyncio import AsyncSession

from outrider.consumer.scopes import current_scope
from outrider.errors import ConfigurationError, DatabaseUnavailable, DecodeError, InvalidEvent
from outrider.events.cloudevents import from_attributes
from outrider.events.context import handling
from outrider.events.envelope import EventEnvelope, EventMetadata
from outrider.events.ids import EventId
from outrider.relay.backoff import OutageBackoff

try:
    from faststream import BaseMiddleware, Context, SourceType
    from faststream.exceptions import AckMessage
except ImportError as missing:
    raise ConfigurationError(
        "faststream is missing: pip install 'outrider[faststream]'"
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faststream import ContextRepo, StreamMessage

    from outrider.ports import Inbox

    Message = StreamMessage[Any]
    Handler = Callable[[Message], Awaitable[object]]

InboxSession = Annotated[AsyncSession, Context("session")]
"""Annotation of a handler's parameter: the session whose transaction also holds the mark."""

_CLOUDEVENTS_PREFIXES: Final = ("ce-", "ce_")


class InboxMiddleware:
    """`RabbitBroker(url, middlewares=[…, InboxMiddleware(inbox)])`; must be the last one.

    A mark belongs to the event and to the full name of the handler function. A duplicate is only
    acknowledged. While the database is unavailable, a message waits here with backoff.
    """

    def __init__(self, inbox: Inbox, *, without_id: Literal["refuse", "pass"] = "refuse") -> None:
        """`without_id` decides about a message that has no event id: "refuse" raises, "pass"
        handles it without an inbox."""
        if without_id not in ("refuse", "pass"):
            raise ConfigurationError('without_id must be "refuse" or "pass"')
        self._inbox, self._without_id = inbox, without_id

    def __call__(self, message: object, /, *, context: ContextRepo) -> BaseMiddleware[Any, Any]:
        return _MessageMiddleware(self._inbox, self._without_id, message, context)


class _MessageMiddleware(BaseMiddleware[Any, Any]):
    """The middleware of one message."""

    def __init__(
        self, inbox: Inbox, without_id: str, message: object, context: ContextRepo
    ) -> None:
        super().__init__(message, context=context)
        self._inbox, self._without_id = inbox, without_id

    async def consume_scope(self, call_next: Handler, msg: Message) -> object:
        if msg.source_type is SourceType.RESPONSE:
            return await call_next(msg)
        envelope = envelope_of(msg)
        if envelope is None and self._without_id == "pass":
            return await call_next(msg)
        if envelope is None:
            raise DecodeError("message has no event id: expected one as ce-id, ce_id or message_id")
        name, backoff = _name_of(call_next), OutageBackoff()
        while True:
            try:
                return await self._handle(call_next, msg, envelope, name)
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next_delay().total_seconds())

    async def _handle(
        self, call_next: Handler, msg: Message, envelope: EventEnvelope, name: str
    ) -> object:
        async with self._inbox.once(envelope, name) as first:
            if first:
                scope = current_scope()
                session = await scope.get(AsyncSession) if scope is not None else None
                with handling(envelope), self.context.scope("session", session):
                    try:
                        return await call_next(msg)
                    except AckMessage as done:  # a success, so the mark is committed
                        acknowledged = done
            else:
                acknowledged = AckMessage()
        # A plain return would publish an empty reply, and would not acknowledge the message if the
        # subscriber acknowledges manually.
        await msg.ack(**acknowledged.extra_options)
        raise acknowledged


def envelope_of(message: Message) -> EventEnvelope | None:
    """The event of a message; None if the message has no event id."""
    if message.batch_headers:
        raise ConfigurationError("an inbox needs one message at a time; subscribe without batch")
    headers = _headers_of(message)
    # Not FastStream's own `message_id`: FastStream invents one if the message has none.
    ids = (headers.get(name) for name in ("ce-id", "ce_id", "message_id"))
    text = next(filter(None, ids), None) or getattr(message.raw_message, "message_id", None)
    attributes = {
        n[3:]: value for n, value in headers.items() if n.startswith(_CLOUDEVENTS_PREFIXES)
    }
    try:
        event_id = EventId.from_string(str(text or ""), attributes.get("source", ""))
    except ValueError:
        return None
    try:
        return from_attributes(attributes, message.body)
    except (DecodeError, InvalidEvent):
        return _placeholder(event_id, message)


def _placeholder(event_id: EventId, message: Message) -> EventEnvelope:
    """An envelope for a message that has an id, but not the attributes of an event."""
    return EventEnvelope(
        event_id=event_id,
        event_type="message",
        aggregate_type="message",
        aggregate_id=str(event_id),
        occurred_at=datetime.now(UTC),
        data=b"{}",
        metadata=EventMetadata(correlation_id=message.correlation_id),
    )


def _headers_of(message: Message) -> dict[str, str]:
    headers, raw = dict(message.headers), message.raw_message
    if isinstance(raw, Mapping) and isinstance(raw.get("data"), Mapping):
        headers |= raw["data"]  # fields of a Redis stream entry, which FastStream ignores
    percent_encoded = type(message).__module__.startswith("faststream.nats")
    decode = unquote if percent_encoded else str
    return {_text(name).lower(): decode(_text(value)) for name, value in headers.items()}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _name_of(call: Handler) -> str:
    """The full name of the handler function, without the wrappers of FastStream."""
    while isinstance(call, partial):
        call = call.args[0]
    wrapper: object = getattr(call, "__self__", None)
    function = inspect.unwrap(cast("Handler", getattr(wrapper, "_original_call", wrapper)))
    if not hasattr(function, "__qualname__"):
        raise ConfigurationError(
            "the inbox finds no handler function: make InboxMiddleware the last of the middlewares"
        )
    return f"{function.__module__}.{function.__qualname__}"
