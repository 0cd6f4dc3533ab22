"""FastStream: a middleware through which a message takes effect once, whatever the broker.

What it cannot do: help if the message is acknowledged before the handler is done. Give subscribers
an `ack_policy` of NACK_ON_ERROR or REJECT_ON_ERROR; Kafka's default acknowledges first.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import unquote
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from outrider.consumer.scopes import current_scope
from outrider.errors import ConfigurationError, DatabaseUnavailable, DecodeError, InvalidEvent
from outrider.events.cloudevents import from_attributes
from outrider.events.context import handling
from outrider.events.envelope import EventEnvelope, EventMetadata
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

    Handler = Callable[[StreamMessage[Any]], Awaitable[Any]]

InboxSession = Annotated[AsyncSession, Context("session")]
"""For a handler's parameter: the session whose commit is that of the inbox."""

_PREFIXES: Final = ("ce-", "ce_")


class InboxMiddleware:
    """`RabbitBroker(url, middlewares=[…, InboxMiddleware(inbox)])`, as the last one.

    Marks belong to the event and to the handler's function, by its full name. A duplicate is
    acknowledged and nothing else happens. While the database is away, messages wait here.
    """

    def __init__(self, inbox: Inbox, *, without_id: Literal["refuse", "pass"] = "refuse") -> None:
        """`without_id` says what becomes of a message that has no event id: it fails, or it is
        handled without an inbox."""
        if without_id not in ("refuse", "pass"):
            raise ConfigurationError('without_id must be "refuse" or "pass"')
        self._inbox, self._without_id = inbox, without_id

    def __call__(self, message: Any, /, *, context: ContextRepo) -> BaseMiddleware[Any, Any]:
        return _Once(self._inbox, self._without_id, message, context)


class _Once(BaseMiddleware[Any, Any]):
    """The middleware of one message."""

    def __init__(self, inbox: Inbox, without_id: str, message: Any, context: ContextRepo) -> None:
        super().__init__(message, context=context)
        self._inbox, self._without_id = inbox, without_id

    async def consume_scope(self, call_next: Handler, msg: StreamMessage[Any]) -> Any:
        if msg.source_type is SourceType.RESPONSE:
            return await call_next(msg)
        envelope = envelope_of(msg)
        if envelope is None and self._without_id == "pass":
            return await call_next(msg)
        if envelope is None:
            raise DecodeError(
                "message has no event id: expected a UUID as ce-id, ce_id or message_id"
            )
        name, pause = _name_of(call_next), OutageBackoff()
        while True:
            try:
                return await self._handle(call_next, msg, envelope, name)
            except DatabaseUnavailable:
                await asyncio.sleep(pause.next_delay().total_seconds())

    async def _handle(
        self, call_next: Handler, msg: StreamMessage[Any], envelope: EventEnvelope, name: str
    ) -> Any:
        async with self._inbox.once(envelope, name) as first:
            if first:
                scope = current_scope()
                session = await scope.get(AsyncSession) if scope is not None else None
                with handling(envelope), self.context.scope("session", session):
                    try:
                        return await call_next(msg)
                    except AckMessage as done:  # as good as a return, so the mark stays
                        acknowledged = done
            else:
                acknowledged = AckMessage()
        # Not a mere return: that would answer or publish on, with nothing to say. And whoever
        # acknowledges by hand does not come to it.
        await msg.ack(**acknowledged.extra_options)
        raise acknowledged


def envelope_of(message: StreamMessage[Any]) -> EventEnvelope | None:
    """The event that a message carries, or None if it has no event id."""
    if message.batch_headers:
        raise ConfigurationError("an inbox needs one message at a time; subscribe without batch")
    headers = _headers_of(message)
    # FastStream's own `message_id` is of no use: it is made up if there is none.
    given = (headers.get(name) for name in ("ce-id", "ce_id", "message_id"))
    found = next(filter(None, given), None) or getattr(message.raw_message, "message_id", None)
    try:
        event_id = UUID(str(found))
    except ValueError:
        return None
    attributes = {n[3:]: value for n, value in headers.items() if n.startswith(_PREFIXES)}
    try:
        return from_attributes(attributes, message.body)
    except (DecodeError, InvalidEvent):
        return _stand_in(event_id, message)


def _stand_in(event_id: UUID, message: StreamMessage[Any]) -> EventEnvelope:
    """For a message that has an id and is no cloud event of ours."""
    return EventEnvelope(
        event_id=event_id,
        event_type="message",
        aggregate_type="message",
        aggregate_id=str(event_id),
        occurred_at=datetime.now(UTC),
        data=b"{}",
        metadata=EventMetadata(correlation_id=message.correlation_id),
    )


def _headers_of(message: StreamMessage[Any]) -> dict[str, str]:
    headers, raw = dict(message.headers), message.raw_message
    if isinstance(raw, Mapping) and isinstance(raw.get("data"), Mapping):
        headers |= raw["data"]  # the fields of a Redis stream, which FastStream does not look at
    percent_encoded = type(message).__module__.startswith("faststream.nats")
    decode = unquote if percent_encoded else str
    return {_text(name).lower(): decode(_text(value)) for name, value in headers.items()}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _name_of(call: Handler) -> str:
    """The handler's function, found behind whatever FastStream has put around it."""
    while isinstance(call, partial):
        call = call.args[0]
    wrapper: Any = getattr(call, "__self__", None)
    function = inspect.unwrap(getattr(wrapper, "_original_call", wrapper))
    if not hasattr(function, "__qualname__"):
        raise ConfigurationError(
            "the inbox finds no handler function: make InboxMiddleware the last of the middlewares"
        )
    return f"{function.__module__}.{function.__qualname__}"
