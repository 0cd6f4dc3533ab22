"""Errors, sorted by what the caller should do about them.

OutriderError
├── ConfigurationError   fix the code or the settings
├── InvalidEvent         fix the event; it was refused before anything was stored
├── PublishFailed        look at the outcome of each event
├── PublishRefused       count an attempt and try again
├── BrokerUnavailable    wait; no attempt is spent
├── DatabaseUnavailable  wait; nothing was changed, or whether it was changed is unknown
├── DecodeError          never retry; a person or a new release must fix the cause
└── LeaseLost            do nothing; another relay has taken over
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def name_of(given: object) -> str:
    """How an error names an argument of a wrong type: never by its value."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return "nothing" if given is None else type(given).__name__


class OutriderError(Exception):
    """The base class of every error that this library raises on purpose."""


class ConfigurationError(OutriderError):
    """The code or the settings are wrong; no retry can help."""


class InvalidEvent(OutriderError, ValueError):
    """An event holds a value that would not be read back unchanged; nothing was stored."""


class DecodeError(OutriderError, ValueError):
    """Stored or received bytes cannot be decoded as the event type they name."""


class PublishRefused(OutriderError):
    """The sink answered and refused this event."""


class BrokerUnavailable(OutriderError):
    """The sink did not answer; whether it has the event is unknown."""


class DatabaseUnavailable(OutriderError):
    """The database did not answer, or could not do it now; the same call may succeed later."""


class LeaseLost(OutriderError):
    """Another relay owns the lane now, and will publish its unsettled events."""


class PublishFailed(ExceptionGroup[Exception], OutriderError):
    """Not every event of a batch was accepted; `outcomes` has one entry per event."""

    outcomes: Sequence[object] = ()
