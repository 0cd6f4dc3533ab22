"""What an event says, as far as it may be shown."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

REDACTED: Final = (
    *("password", "passwd", "secret", "token", "apikey", "authorization", "cookie"),
    *("credential", "privatekey", "iban", "cardnumber", "cvv", "ssn"),
)
HIDDEN: Final = "•••"
# Ids that connect events; whatever else stands in the metadata may be about people.
_OPEN: Final = {
    *("correlation_id", "causation_id", "trace_id", "traceparent", "tracestate"),
    *("replay_id", "added_fields"),
}
# A browser's numbers are exact up to here.
_EXACT: Final = 2**53


@dataclass(frozen=True)
class Mask:
    names: tuple[str, ...] = REDACTED
    """A field is hidden if its name contains one of these; case, _ and - do not matter."""
    show: bool = False

    def payload(self, payload: Any) -> Any:
        return exact(self._redacted(payload))

    def metadata(self, metadata: dict[str, Any], *, readable: bool) -> dict[str, Any]:
        """Without leave to read it all, only what connects events."""
        if readable:
            return self.payload(metadata)  # type: ignore[no-any-return]
        return {name: value if name in _OPEN else HIDDEN for name, value in metadata.items()}

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: HIDDEN if self._hides(k) else self._redacted(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._redacted(one) for one in value]
        return value

    def _hides(self, name: str) -> bool:
        plain = re.sub(r"[\W_]", "", name).lower()
        return any(re.sub(r"[\W_]", "", one).lower() in plain for one in self.names)


def exact(value: Any) -> Any:
    """Integers that a browser would round, as texts."""
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [exact(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
