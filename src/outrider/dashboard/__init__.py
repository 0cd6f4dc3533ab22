"""The page: look at the outbox and repair it in a browser, inside your application or alone."""

from outrider.dashboard.app import dashboard
from outrider.dashboard.guard import Authorize

__all__ = ["Authorize", "dashboard"]
