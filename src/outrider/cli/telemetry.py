"""The numbers and spans that a relay shows, if the libraries for them are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.observability.logging import log_signals

if TYPE_CHECKING:
    from outrider.admin.inspector import OutboxInspector
    from outrider.cli.health import Numbers
    from outrider.ports import EventPublisher
    from outrider.signals import OnSignal, Signal


def counted(inspector: OutboxInspector) -> tuple[OnSignal, Numbers | None]:
    """Signals to the log and into numbers; the backlog is looked up when somebody asks."""
    try:
        from outrider.observability.prometheus import PrometheusMetrics
    except ModuleNotFoundError:
        return log_signals, None
    metrics = PrometheusMetrics()

    def on_signal(signal: Signal) -> None:
        log_signals(signal)
        metrics.on_signal(signal)

    async def numbers() -> bytes:
        metrics.show_backlog(await inspector.sinks())
        return _latest()

    return on_signal, numbers


def traced(publisher: EventPublisher, sink: str) -> EventPublisher:
    """With a span for each batch, if tracing was set up, as `opentelemetry-instrument` does."""
    try:
        from opentelemetry import trace

        from outrider.observability.opentelemetry import TracedPublisher
    except ModuleNotFoundError:
        return publisher
    nobody_looks = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return publisher if nobody_looks else TracedPublisher(publisher, sink)


def numbers_of_process() -> Numbers | None:
    """Whatever an application counts itself."""
    try:
        import prometheus_client  # noqa: F401 - is it there?
    except ModuleNotFoundError:
        return None

    async def numbers() -> bytes:
        return _latest()

    return numbers


def _latest() -> bytes:
    from prometheus_client import generate_latest

    return generate_latest()
