"""Safe signals: an error of `on_signal` is logged once and changes the outcome of nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from outrider.observability.failure_reason import failure_reason

if TYPE_CHECKING:
    from outrider.signals import OnSignal, Signal

_MAX_KINDS: Final = 100
_log: Final = logging.getLogger("outrider.signals")


def combine(*receivers: OnSignal) -> OnSignal:
    """One `on_signal` for several receivers; an error of one does not stop the others."""
    each = [(SafeSignals(), receiver) for receiver in receivers]

    def on_signal(signal: Signal) -> None:
        for safe, receiver in each:
            safe.send(receiver, signal)

    return on_signal


class SafeSignals:
    """Sends signals to an `on_signal` that may raise.

    An error is logged once for each kind of signal and error. Only KeyboardInterrupt and SystemExit
    pass, since they may come from outside: a signal of the system interrupts whatever runs.
    """

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def send(self, on_signal: OnSignal | None, signal: Signal) -> None:
        if on_signal is None:
            return
        try:
            on_signal(signal)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - also a CancelledError that nobody asked for
            self._log_once(type(signal).__name__, error)

    def _log_once(self, kind: str, error: BaseException) -> None:
        key = (kind, type(error).__name__)
        if key in self._logged or len(self._logged) >= _MAX_KINDS:
            return
        self._logged.add(key)
        _log.error(
            "on_signal raised with %s, logged once: %s; the work goes on, repair on_signal",
            kind,
            failure_reason(error),
        )
