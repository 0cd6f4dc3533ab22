"""The publisher that `outrider relay` makes of its environment."""

from __future__ import annotations

from outrider.cli.publishers import publisher_of
from outrider.ports import EventPublisher
from outrider.settings.settings import read_settings


def publisher_from(url: str, destination: str) -> EventPublisher:
    return publisher_of(read_settings({}, {"OUTBOX_TO": url, "OUTBOX_DESTINATION": destination}))
