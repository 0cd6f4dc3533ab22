"""The promises of publishers and sources, as test suites that an adapter's author inherits."""

import pytest

# pytest rewrites assertions only in test modules, unless it is told the names of others.
pytest.register_assert_rewrite(
    "outrider.testing.conformance.publishers",
    "outrider.testing.conformance.sending",
    "outrider.testing.conformance.sources",
)

from outrider.testing.conformance.events import event  # noqa: E402
from outrider.testing.conformance.harness import (  # noqa: E402
    DeadLetter,
    SinkHarness,
    SourceHarness,
    StoredMessage,
)
from outrider.testing.conformance.publishers import PublisherSuite  # noqa: E402
from outrider.testing.conformance.sources import SourceSuite  # noqa: E402

__all__ = [
    "DeadLetter",
    "PublisherSuite",
    "SinkHarness",
    "SourceHarness",
    "SourceSuite",
    "StoredMessage",
    "event",
]
