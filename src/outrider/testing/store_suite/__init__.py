"""What every store promises to relays, as tests that a store's author inherits.

Derive a class whose name begins with Test, give it the fixture `store_harness`, and run pytest.
"""

import pytest

# The suites are no test modules by name, yet a failure of theirs should show both sides.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("claims", "history", "leases", "settling", "sinks"))
)

from outrider.testing.store_suite.claims import ClaimSuite  # noqa: E402
from outrider.testing.store_suite.harness import StoredRow, StoreHarness  # noqa: E402
from outrider.testing.store_suite.leases import LeaseSuite  # noqa: E402
from outrider.testing.store_suite.settling import SettleSuite  # noqa: E402
from outrider.testing.store_suite.sinks import SinkSuite  # noqa: E402


class StoreSuite(LeaseSuite, ClaimSuite, SettleSuite, SinkSuite):
    """All promises of an RelayStore."""


__all__ = ["StoreHarness", "StoreSuite", "StoredRow"]
