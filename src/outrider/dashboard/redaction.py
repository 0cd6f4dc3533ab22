"""Redaction: hides fields of payloads and metadata before they are shown."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from outrider.events.strict_json import JsonObject

REDACTED: Final = (
    *("password", "passwd", "secret", "token", "apikey", "authorization", "cookie"),
    *("credential", "privatekey", "iban", "cardnumber", "cvv", "ssn"),
)
HIDDEN: Final = "•••"
# Ids that connect events. All other metadata may identify people.
_SHOWN_METADATA: Final = {
    *("correlation_id", "causation_id", "trace_id", "traceparent", "tracestate"),
    *("replay_id", "added_fields"),
}
# JavaScript's numbers are exact up to this integer.
_MAX_EXACT_INT: Final = 2**53


@dataclass(frozen=True)
class Redaction:
    """Hides fields by their names, and whole payloads unless `show` is set."""

    names: tuple[str, ...] = REDACTED
    """A field is hidden if its name contains one of these; case, _ and - do not matter."""
    show: bool = False

    def payload(self, payload: object) -> object:
        return exact(self._redacted(payload))

    def metadata(self, metadata: JsonObject, *, readable: bool) -> object:
        """Only ids that connect events, unless the person may read payloads."""
        if readable:
            return self.payload(metadata)
        return {
            name: value if name in _SHOWN_METADATA else HIDDEN for name, value in metadata.items()
        }

    def _redacted(self, value: object) -> object:
        if isinstance(value, dict):
            return {k: HIDDEN if self._hides(k) else self._redacted(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._redacted(item) for item in value]
        return value

    def _hides(self, name: str) -> bool:
        return any(_letters(hidden) in _letters(name) for hidden in self.names)


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def exact(value: object) -> object:
    """Converts to text the integers that a browser would round."""
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MAX_EXACT_INT:
        return str(value)
    return value


def pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
