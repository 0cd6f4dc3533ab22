"""Sinks and sources, one package for each broker; and what an adapter of your own needs."""

from outrider.consumer.losses import Loss, LossReport
from outrider.errors import PublishFailed, PublishRefused
from outrider.events.cloudevents import (
    STRUCTURED_CONTENT_TYPE,
    from_attributes,
    from_structured,
    to_attributes,
    to_structured,
)
from outrider.outcomes import (
    ACCEPTED,
    HELD_BACK,
    Accepted,
    Deferred,
    Outcome,
    Refused,
    Unknown,
    raise_unless_accepted,
)
from outrider.ports import CheckResult, Delivery, DurabilityCheck, EventSource

__all__ = [
    "ACCEPTED",
    "HELD_BACK",
    "STRUCTURED_CONTENT_TYPE",
    "Accepted",
    "CheckResult",
    "Deferred",
    "Delivery",
    "DurabilityCheck",
    "EventSource",
    "Loss",
    "LossReport",
    "Outcome",
    "PublishFailed",
    "PublishRefused",
    "Refused",
    "Unknown",
    "from_attributes",
    "from_structured",
    "raise_unless_accepted",
    "to_attributes",
    "to_structured",
]
