"""Inspecting and repairing the outbox: the functions behind the dashboard and the command line."""

from outrider.admin.checkup import check_database
from outrider.admin.filters import EventFilter
from outrider.admin.inspector import OutboxInspector
from outrider.admin.repair import CountChanged, OutboxRepair
from outrider.admin.replay import Replay
from outrider.admin.summaries import (
    EventSummary,
    FailureGroup,
    LaneSummary,
    Page,
    ParkedAggregate,
    RefusedAttempt,
    RelaySummary,
    SinkSummary,
)
from outrider.ports import CheckResult
from outrider.recording.repository import EventOutboxRepository, OutboxRepository
from outrider.recording.rows import row_of
from outrider.store.schema import migrate as schema

__all__ = [
    "CheckResult",
    "CountChanged",
    "EventFilter",
    "EventOutboxRepository",
    "EventSummary",
    "FailureGroup",
    "LaneSummary",
    "OutboxInspector",
    "OutboxRepair",
    "OutboxRepository",
    "Page",
    "ParkedAggregate",
    "RefusedAttempt",
    "RelaySummary",
    "Replay",
    "SinkSummary",
    "check_database",
    "row_of",
    "schema",
]
