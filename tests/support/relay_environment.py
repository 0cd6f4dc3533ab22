"""The publisher that `outrider relay` creates from its environment."""

from __future__ import annotations

from outrider.cli.publishers import make_publisher
from outrider.ports import EventPublisher
from outrider.settings.settings import read_settings


def publisher_from(url: str, destination: str) -> EventPublisher:
    environment = {"OUTBOX_TO": url, "OUTBOX_DESTINATION": destination}
    return make_publisher(read_settings({}, environment).process)
