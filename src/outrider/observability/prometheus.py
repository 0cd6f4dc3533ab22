"""Signals as Prometheus metrics, and gauges of the backlog."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, assert_never

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing.name}: pip install 'outrider[prometheus]'") from None

from outrider import signals as s

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta


_DURATION_BUCKETS_S: Final = Histogram.DEFAULT_BUCKETS
_LATENCY_BUCKETS_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
_MAX_TYPE_LABELS: Final = 200
_OTHER_TYPES: Final = "other"


class BacklogOfSink(Protocol):
    """The backlog of one sink, such as a SinkSummary."""

    @property
    def pending(self) -> int: ...
    @property
    def retrying(self) -> int: ...
    @property
    def parked(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def oldest(self) -> timedelta | None: ...


class PrometheusMetrics:
    """Pass its `on_signal` to the relays, the consumers and the outbox of one process.

    Labels have few values: sinks, handlers, outcomes and the first two hundred event types. No
    id, user or error text is ever a label.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(
            name: str, text: str, *labels: str, buckets: tuple[float, ...] = _DURATION_BUCKETS_S
        ) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self._backlog = gauge("outbox_backlog_events", "Events that wait or failed.", "status")
        self._oldest = gauge(
            "outbox_backlog_oldest_age_seconds", "Age of the oldest pending event, unless parked."
        )
        self._recorded = counter("outbox_recorded_events", "Events committed.", "event_type")
        self._published = counter(
            "outbox_published_events", "Events that a sink accepted.", "sink", "event_type"
        )
        self._attempts = counter(
            "outbox_publish_attempts", "Events handed to a sink.", "sink", "outcome"
        )
        self._publishing = histogram(
            "outbox_publish_duration_seconds", "How long a sink took for a batch.", "sink"
        )
        self._latency = histogram(
            "outbox_delivery_latency_seconds",
            "From recorded to accepted by the sink.",
            "sink",
            buckets=_LATENCY_BUCKETS_S,
        )
        self._claiming = histogram("outbox_claim_duration_seconds", "How long a claim took.")
        self._batch = histogram(
            "outbox_batch_events", "Events of a batch.", buckets=(1, 5, 10, 50, 100, 500, 1000)
        )
        self._wakeups = counter("outbox_wakeups", "Why relays looked for work.", "source")
        self._lost = counter("outbox_lost_leases", "Leases that another relay took over.")
        self._deleted = counter("outbox_deleted_events", "Published events that were deleted.")
        self._sink_up = gauge("outbox_sink_up", "Whether the sink answers.", "sink")
        self._last = gauge(
            "outbox_last_publish_timestamp_seconds", "When a sink last accepted events.", "sink"
        )
        self._handled = counter("inbox_handled_events", "Calls of handlers.", "handler", "outcome")
        self._handling = histogram(
            "inbox_handle_duration_seconds", "How long a handler took.", "handler"
        )
        self._messages_lost = counter(
            "inbox_lost_messages",
            "Messages that a broker deleted before they were handled; an unknown number counts 1.",
            "consumer",
        )
        self._types: set[str] = set()

    def on_signal(self, signal: s.Signal) -> None:  # noqa: C901 - one case per signal
        match signal:
            case s.EventsRecorded():
                for event_type, number in signal.events.items():
                    self._recorded.labels(self._type(event_type)).inc(number)
            case s.BatchPublished():
                self._count_published(signal)
            case s.BatchClaimed():
                self._claiming.observe(signal.took.total_seconds())
                self._batch.observe(signal.events)
            case s.WokenUp():
                self._wakeups.labels("poll" if signal.source == "poll" else "notify").inc()
            case s.LeaseWasLost():
                self._lost.inc()
            case s.EventsDeleted():
                self._deleted.inc(signal.events)
            case s.RelayStarted() | s.SinkAvailable():
                self._sink_up.labels(signal.sink).set(1)
            case s.SinkUnavailable():
                self._sink_up.labels(signal.sink).set(0)
            case s.EventHandled():
                self._handled.labels(signal.handler, signal.outcome).inc()
                self._handling.labels(signal.handler).observe(signal.took.total_seconds())
            case s.MessagesLost():
                self._messages_lost.labels(signal.consumer).inc(signal.count or 1)
            case (
                s.RelayStopped()
                | s.LanesChanged()
                | s.PublishRetried()
                | s.PublishDeferred()
                | s.EventFailed()
                | s.StoreUnavailable()
                | s.StoreAvailable()
                | s.ConsumerStarted()
                | s.ConsumerStopped()
                | s.EventUnhandled()
                | s.EventSuspected()
                | s.EventDeadLettered()
                | s.SourceUnavailable()
                | s.SourceAvailable()
                | s.EventLoopBlocked()
                | s.ServiceFailed()
            ):
                pass
            case _:
                assert_never(signal)

    def show_backlog(self, sinks: Iterable[BacklogOfSink]) -> None:
        """Set the gauges of the backlog, summed over all sinks; see `OutboxInspector.sinks`."""
        backlogs = list(sinks)
        for status in ("pending", "retrying", "parked", "failed"):
            self._backlog.labels(status).set(sum(getattr(sink, status) for sink in backlogs))
        ages = [sink.oldest.total_seconds() for sink in backlogs if sink.oldest is not None]
        self._oldest.set(max(ages, default=0.0))

    def _count_published(self, signal: s.BatchPublished) -> None:
        sink, now = signal.sink, datetime.now(UTC)
        outcomes = {
            "accepted": len(signal.accepted),
            "refused": signal.refused,
            "deferred": signal.deferred,
            "unknown": signal.unknown,
        }
        for outcome, number in outcomes.items():
            if number:
                self._attempts.labels(sink, outcome).inc(number)
        self._publishing.labels(sink).observe(signal.took.total_seconds())
        latency = self._latency.labels(sink)
        for event in signal.accepted:
            self._published.labels(sink, self._type(event.envelope.event_type)).inc()
            latency.observe(max(0.0, (now - event.created_at).total_seconds()))
        if signal.accepted:
            self._sink_up.labels(sink).set(1)
            self._last.labels(sink).set(now.timestamp())

    def _type(self, event_type: str) -> str:
        if event_type not in self._types:
            if len(self._types) >= _MAX_TYPE_LABELS:
                return _OTHER_TYPES
            self._types.add(event_type)
        return event_type
