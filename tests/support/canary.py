"""One value that must never appear in a log, an error, a metric or a page."""

from typing import Final

CANARY: Final = "canary-7b1"
