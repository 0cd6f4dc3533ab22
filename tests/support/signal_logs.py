"""Everything that `log_signals` writes when something fails for a given reason."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from outrider import signals as s
from outrider.observability.logging import EventFormatter, log_signals

_EVENT = UUID(int=7)
_WAIT = timedelta(seconds=1)


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(EventFormatter("%(levelname)s %(name)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record) + repr(vars(record)))


def logged(reason: str) -> str:
    """The text and the fields of all log records about one reason."""
    event = {"event_id": _EVENT, "event_type": "order.placed", "correlation_id": None}
    handler, logger = _Records(), logging.getLogger("outrider")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        for signal in (
            s.SinkUnavailable(sink="default", reason=reason, wait=_WAIT),
            s.SourceUnavailable(consumer="billing", reason=reason, wait=_WAIT),
            s.PublishRetried(sink="default", attempt=1, wait=_WAIT, reason=reason, **event),
            s.PublishDeferred(sink="default", wait=_WAIT, reason=reason, **event),
            s.EventDeadLettered(consumer="billing", reason=reason, **event),
        ):
            log_signals(signal)
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
    assert len(handler.lines) == 5
    return "\n".join(handler.lines)
