"""The dashboard: inspect and repair the outbox in a browser, mounted in an application or alone."""

from outrider.dashboard.app import dashboard
from outrider.dashboard.guard import AuthorizeAction

__all__ = ["AuthorizeAction", "dashboard"]
