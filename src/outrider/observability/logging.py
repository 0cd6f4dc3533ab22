"""Signals as log records: ids in the text and in `extra`, never a payload or a user's id."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, assert_never

from outrider import signals as s
from outrider.observability.failure_reason import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    _RelaySignal = (
        s.RelayStarted
        | s.RelayStopped
        | s.LanesChanged
        | s.LeaseWasLost
        | s.EventLoopBlocked
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
        | s.EventSuspected
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
_service: Final = logging.getLogger("outrider.service")


def log_signals(signal: s.Signal) -> None:
    """The default of `on_signal`. An outage is logged when it begins and when it ends.

    Lines about single events have the logger `outrider.audit` and the level INFO.
    """
    match signal:
        case s.PublishRetried():
            wait = signal.wait.total_seconds()
            _log_facts(_relay.warning, "event refused, next try in %g s %s", signal, wait)
        case s.PublishDeferred():
            text = "event deferred: its aggregate waits for the sink, no attempt is counted %s"
            _log_facts(_relay.warning, text, signal)
        case s.EventFailed():
            _log_facts(_relay.critical, "event failed, a person must look %s", signal)
        case s.BatchPublished():
            _log_published(signal)
        case s.EventsDeleted():
            _relay.debug("deleted %d published events", signal.events)
        case s.ServiceFailed():
            _service.critical("%s has ended, restart it: %s", signal.service, signal.reason)
        case s.BatchClaimed() | s.WokenUp() | s.EventsRecorded():
            pass
        case (
            s.ConsumerStarted()
            | s.ConsumerStopped()
            | s.EventHandled()
            | s.EventUnhandled()
            | s.EventSuspected()
            | s.EventDeadLettered()
            | s.SourceUnavailable()
            | s.SourceAvailable()
            | s.MessagesLost()
        ):
            _log_consumer(signal)
        case _:
            _log_relay(signal)


class EventFormatter(logging.Formatter):
    """Plain text that escapes control characters.

    Untrusted names in records of any library can neither begin a new line nor control a terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in the standard library
        return one_line(super().formatMessage(record))


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
        case s.EventLoopBlocked():
            _relay.warning(
                "the event loop was blocked for %.1f s, or the process was paused; code that "
                "blocks belongs into a thread: await asyncio.to_thread(…)",
                signal.blocked.total_seconds(),
            )
        case s.SinkUnavailable():
            _log_facts(_relay.warning, "sink unavailable, waiting %s", signal)
        case s.StoreUnavailable():
            _log_facts(_relay.warning, "database unavailable, waiting %s", signal)
        case s.SinkAvailable():
            _log_facts(_relay.info, "sink available again %s", signal)
        case s.StoreAvailable():
            _log_facts(_relay.info, "database available again %s", signal)
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
            text = (
                "no handler subscribed to this event type: accepted without effect, as all that "
                'follow; subscribe a handler, or set unhandled="refuse" %s'
            )
            _log_facts(_consumer.warning, text, signal)
        case s.EventSuspected():
            text = "handled alone now: %d processes died while they handled this message %s"
            _log_facts(_consumer.warning, text, signal, signal.crashes)
        case s.EventDeadLettered():
            text = "message moved to the dead letters, a person must look %s"
            _log_facts(_consumer.critical, text, signal)
        case s.MessagesLost():
            _log_lost(signal)
        case s.SourceUnavailable():
            _log_facts(_consumer.warning, "broker unavailable, waiting %s", signal)
        case s.SourceAvailable():
            _log_facts(_consumer.info, "broker available again %s", signal)
        case _:
            assert_never(signal)


def _log_handled(signal: s.EventHandled) -> None:
    match signal.outcome:
        case "ok" | "duplicate" if not _audit.isEnabledFor(logging.INFO):
            pass
        case "ok":
            _log_facts(_audit.info, "event handled %s", signal)
        case "duplicate":
            _log_facts(_audit.info, "event handled before, skipped %s", signal)
        case "wait":
            text = "inbox, database or broker unavailable, the event waits %s"
            _log_facts(_consumer.warning, text, signal)
        case "retry" | "dead":
            _log_facts(_consumer.warning, "handler failed %s", signal)
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
            _audit.info("event published %s", _as_text(facts), extra=facts)


def _log_facts(log: Callable[..., None], text: str, signal: s.Signal, *arguments: object) -> None:
    """The facts of the signal end the text, for plain logging, and are in `extra`."""
    facts = {name: getattr(signal, name) for name in _EXTRA_NAMES if hasattr(signal, name)}
    if event_id := facts.get("event_id"):
        facts["event_id"] = str(event_id)
    if isinstance(signal, s.EventHandled):
        facts["duration_ms"] = _milliseconds(signal.took)
    log(text, *arguments, _as_text(facts), extra=facts)


def _as_text(facts: Mapping[str, object]) -> str:
    known = ((name, facts.get(name)) for name in _EXTRA_NAMES)
    return " ".join(f"{name}={_quoted(value)}" for name, value in known if value is not None)


def _quoted(value: object) -> str:
    """Quoted if it has a space, so that an untrusted value cannot look like several pairs."""
    text = str(value)
    return one_line(repr(text) if " " in text else text)


def _milliseconds(duration: timedelta) -> float:
    return round(duration.total_seconds() * 1000, 3)
