"""Metrics: the names that people alert on, and no label that somebody else can choose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from outrider import DomainEvent
from outrider import signals as s
from outrider.observability.prometheus import PrometheusMetrics
from outrider.outcomes import ClaimedEvent

NAMES = {
    "outbox_backlog_events",
    "outbox_backlog_oldest_age_seconds",
    "outbox_recorded_events_total",
    "outbox_published_events_total",
    "outbox_publish_attempts_total",
    "outbox_publish_duration_seconds",
    "outbox_delivery_latency_seconds",
    "outbox_claim_duration_seconds",
    "outbox_batch_events",
    "outbox_wakeups_total",
    "outbox_lost_leases_total",
    "outbox_deleted_events_total",
    "outbox_sink_up",
    "outbox_last_publish_timestamp_seconds",
    "inbox_handled_events_total",
    "inbox_handle_duration_seconds",
    "inbox_lost_messages_total",
}
SECOND = timedelta(seconds=1)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> PrometheusMetrics:
    return PrometheusMetrics(registry)


def claimed(event_type: str = "order.placed") -> ClaimedEvent:
    return ClaimedEvent(
        position=1,
        lane=1,
        envelope=DomainEvent(event_type, "order", "canary-7b1", {}).to_envelope(),
        created_at=datetime.now(UTC) - SECOND,
        retry_count=0,
        crash_count=0,
        max_retries=None,
        aggregate_key=7,
    )


def test_every_metric_has_its_conventional_name(
    metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    text = generate_latest(registry).decode()

    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name for name in shown if not name.endswith("_created")} == NAMES


def test_signals_become_numbers(metrics: PrometheusMetrics, registry: CollectorRegistry) -> None:
    metrics.on_signal(s.EventsRecorded(events={"order.placed": 3}))
    metrics.on_signal(
        s.BatchPublished(
            sink="kafka", accepted=[claimed()] * 2, refused=1, deferred=3, unknown=4, took=SECOND
        )
    )
    metrics.on_signal(s.BatchClaimed(sink="kafka", events=7, took=SECOND))
    metrics.on_signal(s.WokenUp(sink="kafka", source="lanes"))
    metrics.on_signal(s.WokenUp(sink="kafka", source="poll"))
    metrics.on_signal(s.LeaseWasLost(sink="kafka", lanes=1, events=0))
    metrics.on_signal(s.EventsDeleted(sink="kafka", events=5))
    metrics.on_signal(s.SinkUnavailable(sink="redis", reason="away", wait=SECOND))
    metrics.on_signal(
        s.EventHandled(
            handler="invoice",
            event_id=uuid4(),
            event_type="order.placed",
            correlation_id="c-1",
            outcome="duplicate",
            attempt=1,
            took=SECOND,
            reason=None,
        )
    )

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    kind = {"event_type": "order.placed"}
    assert value("outbox_recorded_events_total", **kind) == 3
    assert value("outbox_published_events_total", sink="kafka", **kind) == 2
    assert value("outbox_publish_attempts_total", sink="kafka", outcome="unknown") == 4
    assert value("outbox_publish_attempts_total", sink="kafka", outcome="refused") == 1
    assert value("outbox_publish_attempts_total", sink="kafka", outcome="deferred") == 3
    assert value("outbox_publish_duration_seconds_sum", sink="kafka") == 1
    assert value("outbox_delivery_latency_seconds_count", sink="kafka") == 2
    assert value("outbox_claim_duration_seconds_count") == 1
    assert value("outbox_batch_events_sum") == 7
    assert value("outbox_wakeups_total", source="notify") == 1
    assert value("outbox_wakeups_total", source="poll") == 1
    assert value("outbox_lost_leases_total") == 1
    assert value("outbox_deleted_events_total") == 5
    assert value("outbox_sink_up", sink="kafka") == 1
    assert value("outbox_sink_up", sink="redis") == 0
    assert value("inbox_handled_events_total", handler="invoice", outcome="duplicate") == 1


def test_backlog_is_shown_over_all_sinks(
    metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    some = {"retrying": 1, "parked": 3, "failed": 2}
    metrics.show_backlog(
        [
            SimpleNamespace(pending=5, oldest=timedelta(seconds=9), **some),
            SimpleNamespace(pending=1, oldest=None, **some),
        ]
    )

    assert registry.get_sample_value("outbox_backlog_events", {"status": "pending"}) == 6
    assert registry.get_sample_value("outbox_backlog_events", {"status": "failed"}) == 4
    assert registry.get_sample_value("outbox_backlog_events", {"status": "parked"}) == 6
    assert registry.get_sample_value("outbox_backlog_oldest_age_seconds") == 9


def test_flood_of_types_does_not_make_a_flood_of_labels(
    metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    metrics.on_signal(s.EventsRecorded(events={f"type.{n}": 1 for n in range(1000)}))

    text = generate_latest(registry).decode()
    assert text.count("outbox_recorded_events_total{") == 201
    assert registry.get_sample_value("outbox_recorded_events_total", {"event_type": "other"}) == 800
