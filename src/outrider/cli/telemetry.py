"""Metrics and tracing of a relay process, if their libraries are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.observability.logging import log_signals
from outrider.observability.safe_signals import combine

if TYPE_CHECKING:
    from outrider.admin.inspector import OutboxInspector
    from outrider.cli.health import RenderMetrics
    from outrider.ports import EventPublisher
    from outrider.signals import OnSignal


def log_and_count(inspector: OutboxInspector) -> tuple[OnSignal, RenderMetrics | None]:
    """A receiver that logs and counts every signal, and the metrics as text for /metrics.

    The backlog is queried at each request of /metrics.
    """
    try:
        from outrider.observability.prometheus import PrometheusMetrics
    except ModuleNotFoundError:
        return log_signals, None
    metrics = PrometheusMetrics()

    async def render() -> bytes:
        metrics.show_backlog(await inspector.sinks())
        return _render()

    return combine(log_signals, metrics.on_signal), render


def traced(publisher: EventPublisher, sink: str) -> EventPublisher:
    """A publisher with a span for each batch if a tracer provider is set up, as
    `opentelemetry-instrument` does; otherwise the same publisher."""
    try:
        from opentelemetry import trace

        from outrider.observability.opentelemetry import TracedPublisher
    except ModuleNotFoundError:
        return publisher
    is_off = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return publisher if is_off else TracedPublisher(publisher, sink)


def process_metrics() -> RenderMetrics | None:
    """The metrics that an application registered itself, for /metrics."""
    try:
        import prometheus_client  # noqa: F401 - is it installed?
    except ModuleNotFoundError:
        return None

    async def render() -> bytes:
        return _render()

    return render


def _render() -> bytes:
    from prometheus_client import generate_latest

    return generate_latest()
