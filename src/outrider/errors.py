"""Errors, sorted by what the caller should do about them.

OutriderError
├── ConfigurationError   fix the code or the settings
├── InvalidEvent         fix the event; it was refused before anything was stored
├── PublishFailed        look at the outcome of each event
├── PublishRefused       count an attempt and try again
├── BrokerUnavailable    wait; no attempt is spent
├── DatabaseUnavailable  wait; nothing was changed, or nobody can tell
├── DecodeError          never retry; a person or a new release must look
└── LeaseLost            do nothing; another relay has taken over
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class OutriderError(Exception):
    """The root of everything this library raises on purpose."""


class ConfigurationError(OutriderError):
    """The code or the settings contradict themselves; running on would only hide it."""


class InvalidEvent(OutriderError, ValueError):
    """An event holds something that could not be read back as it is; nothing was stored."""


class DecodeError(OutriderError, ValueError):
    """Stored or received bytes do not make the event they claim to be."""


class PublishRefused(OutriderError):
    """The sink answered, and the answer for this event was no."""


class BrokerUnavailable(OutriderError):
    """The sink did not answer; nothing can be said about the event."""


class DatabaseUnavailable(OutriderError):
    """The database did not answer, or not now; the same call may succeed later."""


class LeaseLost(OutriderError):
    """The lane belongs to another relay by now; whatever was in hand is its business."""


class PublishFailed(ExceptionGroup[Exception], OutriderError):
    """Not every event of a batch was accepted; `outcomes` has one entry per event."""

    outcomes: Sequence[object] = ()
