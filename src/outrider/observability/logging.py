"""Signals as log records: stable messages, ids in `extra`, never a payload or a user's id."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, assert_never

from outrider import signals as s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    _RelaySignal = (
        s.RelayStarted
        | s.RelayStopped
        | s.LanesChanged
        | s.LeaseWasLost
        | s.SinkUnavailable
        | s.StoreUnavailable
        | s.SinkAvailable
        | s.StoreAvailable
    )
    _ConsumerSignal = (
        s.ConsumerStarted
        | s.ConsumerStopped
        | s.EventHandled
        | s.EventUnhandled
        | s.EventDeadLettered
        | s.SourceUnavailable
        | s.SourceAvailable
        | s.MessagesLost
    )

_EXTRA_NAMES: Final = (
    *("sink", "consumer", "handler", "event_id", "event_type", "correlation_id"),
    *("attempt", "outcome", "duration_ms", "reason"),
)
PAYLOAD_LOGGERS: Final = {
    "aiokafka": logging.DEBUG,
    "aiormq": logging.DEBUG,
    "aiormq.channel": logging.CRITICAL,
    "aiosqlite": logging.DEBUG,
    "sqlalchemy.engine": logging.INFO,
}
"""Loggers of other libraries that log payloads, each with the highest level at which it does."""

_relay: Final = logging.getLogger("outrider.relay")
_consumer: Final = logging.getLogger("outrider.consumer")
_audit: Final = logging.getLogger("outrider.audit")


def log_signals(signal: s.Signal) -> None:
    """Pass this function as `on_signal`. An outage is logged when it begins and when it ends."""
    match signal:
        case s.PublishRetried():
            wait = signal.wait.total_seconds()
            _relay.warning("event refused, next try in %g s", wait, extra=_facts(signal))
        case s.PublishDeferred():
            text = "event deferred: its aggregate waits for the sink, no attempt is counted"
            _relay.warning(text, extra=_facts(signal))
        case s.EventFailed():
            _relay.critical("event failed, a person must look", extra=_facts(signal))
        case s.BatchPublished():
            _log_published(signal)
        case s.EventsDeleted():
            _relay.debug("deleted %d published events", signal.events)
        case s.BatchClaimed() | s.WokenUp() | s.EventsRecorded():
            pass
        case (
            s.ConsumerStarted()
            | s.ConsumerStopped()
            | s.EventHandled()
            | s.EventUnhandled()
            | s.EventDeadLettered()
            | s.SourceUnavailable()
            | s.SourceAvailable()
            | s.MessagesLost()
        ):
            _log_consumer(signal)
        case _:
            _log_relay(signal)


class EventFormatter(logging.Formatter):
    """Plain text with the ids of the event at the end of the line, as name=value.

    Escapes control characters, so untrusted names can neither begin a new line nor control a
    terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in the standard library
        extra = ((name, getattr(record, name, None)) for name in _EXTRA_NAMES)
        facts = [f"{name}={_quoted(value)}" for name, value in extra if value is not None]
        return _one_line(" ".join([super().formatMessage(record), *facts]))


class RedactingFilter(logging.Filter):
    """A filter for log handlers: removes the text of records that may quote a message or a row.

    Some client libraries log whole message bodies at DEBUG. Only the level, the logger and the
    source line of such a record stay. `levels` names these loggers, each with the highest level at
    which it logs payloads.
    """

    def __init__(self, levels: Mapping[str, int] = PAYLOAD_LOGGERS) -> None:
        super().__init__()
        self._levels = levels

    def filter(self, record: logging.LogRecord) -> bool:
        if any(
            record.levelno <= level and f"{record.name}.".startswith(f"{name}.")
            for name, level in self._levels.items()
        ):
            record.msg = f"withheld, it may quote an event: {record.filename}:{record.lineno}"
            record.args = record.exc_info = record.exc_text = record.stack_info = None
        return True


def _quoted(value: object) -> str:
    """Quoted if it has a space, so that an untrusted value cannot look like several pairs."""
    text = str(value)
    return repr(text) if " " in text else text


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _log_relay(signal: _RelaySignal) -> None:
    match signal:
        case s.RelayStarted(relay=relay, store=store, publisher=publisher):
            _relay.info("relay %s started: %s -> %s", relay, store, publisher)
        case s.RelayStopped():
            left = "an unknown number" if signal.pending is None else f"{signal.pending:,}"
            text = "relay %s stopped after %d events, %s left"
            _relay.info(text, signal.relay, signal.published, left)
        case s.LanesChanged():
            _relay.info("relay %s has %d lanes", signal.relay, signal.lanes)
        case s.LeaseWasLost():
            _relay.warning("lease lost: %d lanes, %d events", signal.lanes, signal.events)
        case s.SinkUnavailable():
            _relay.warning("sink unavailable, waiting: %s", signal.reason)
        case s.StoreUnavailable():
            _relay.warning("database unavailable, waiting: %s", signal.reason)
        case s.SinkAvailable():
            _relay.info("sink available again")
        case s.StoreAvailable():
            _relay.info("database available again")
        case _:
            assert_never(signal)


def _log_consumer(signal: _ConsumerSignal) -> None:
    match signal:
        case s.ConsumerStarted():
            _consumer.info("consumer %s started: %s", signal.consumer, signal.source)
        case s.ConsumerStopped():
            _consumer.info("consumer %s stopped after %d events", signal.consumer, signal.handled)
        case s.EventHandled():
            _log_handled(signal)
        case s.EventUnhandled():
            _consumer.warning(
                "no handler subscribed to this event type: accepted without effect, as all that "
                'follow; subscribe a handler, or set unhandled="refuse"',
                extra=_facts(signal),
            )
        case s.EventDeadLettered():
            _consumer.critical(
                "message moved to the dead letters, a person must look", extra=_facts(signal)
            )
        case s.MessagesLost():
            _log_lost(signal)
        case s.SourceUnavailable():
            _consumer.warning("broker unavailable, waiting: %s", signal.reason)
        case s.SourceAvailable():
            _consumer.info("broker available again")
        case _:
            assert_never(signal)


def _log_handled(signal: s.EventHandled) -> None:
    facts = {**_facts(signal), "outcome": signal.outcome, "duration_ms": _milliseconds(signal.took)}
    match signal.outcome:
        case "ok":
            _audit.info("event handled", extra=facts)
        case "duplicate":
            _audit.info("event handled before, skipped", extra=facts)
        case "retry" | "dead":
            _consumer.warning("handler failed", extra=facts)
        case _:
            assert_never(signal.outcome)


def _log_lost(signal: s.MessagesLost) -> None:
    count = "an unknown number of" if signal.count is None else f"{signal.count:,}"
    _consumer.error(
        "the broker lost %s messages of %s, from %s to %s: %s. "
        "`outrider replay` publishes them again, if the outbox still has them",
        *(count, signal.source, signal.first, signal.last, signal.reason),
        extra={"consumer": signal.consumer},
    )


def _log_published(signal: s.BatchPublished) -> None:
    """One record per event, so that a search for a correlation id finds when it was published."""
    if _audit.isEnabledFor(logging.INFO):
        for event in signal.accepted:
            facts = {
                "sink": signal.sink,
                "event_id": str(event.envelope.event_id),
                "event_type": event.envelope.event_type,
                "correlation_id": event.envelope.metadata.correlation_id,
                "attempt": event.retry_count + 1,
                "duration_ms": _milliseconds(signal.took),
            }
            _audit.info("event published", extra=facts)


def _facts(
    signal: s.PublishRetried
    | s.PublishDeferred
    | s.EventFailed
    | s.EventHandled
    | s.EventUnhandled
    | s.EventDeadLettered,
) -> dict[str, object]:
    """The ids of the event in a signal, for `extra`."""
    names = ("sink", "consumer", "handler", "event_type", "correlation_id", "attempt", "reason")
    facts = {name: getattr(signal, name) for name in names if hasattr(signal, name)}
    return {**facts, "event_id": str(signal.event_id) if signal.event_id else None}


def _milliseconds(duration: timedelta) -> float:
    return round(duration.total_seconds() * 1000, 3)
