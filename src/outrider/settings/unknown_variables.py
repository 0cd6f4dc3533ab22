"""Environment variables that look like settings and are none."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from outrider.settings.fields import PREFIX, all_settings

if TYPE_CHECKING:
    from collections.abc import Mapping


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """One sentence for each OUTBOX_ variable that no setting has; never its value."""
    names = {name for setting in all_settings() for name in setting.environment}
    known = {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}
    given = {name.removeprefix(PREFIX) for name in environment if name.startswith(PREFIX)}
    return [_sentence(rest, known) for rest in sorted(given - known)]


def _sentence(rest: str, known: set[str]) -> str:
    name, close = f"{PREFIX}{rest}", get_close_matches(rest, known, n=1)
    hint = f"did you mean {PREFIX}{close[0]}?" if close else "`outrider config` shows all settings"
    # A name with control characters must not reach a terminal as it is.
    return f"{name if name.isprintable() else ascii(name)} is not a setting; {hint}"
