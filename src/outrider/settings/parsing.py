"""Text into values and back: numbers, durations, yes or no, words to choose from."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outrider.relay.retry import ExponentialRetry, SteppedRetry

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DURATION: Final = timedelta(days=36_500)
"""A hundred years. PostgreSQL and Python cannot add much more to a date."""
_MAX_INTEGER: Final = 2**63 - 1
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_RETRY_POLICIES: Final = {"stepped": SteppedRetry, "exponential": ExponentialRetry}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How values of one type are written as text."""

    name: str
    """What a help text calls the value, such as SECONDS; small letters are the text itself."""
    rule: str
    """What the text must be, for an error."""
    parse: Callable[[str], object]
    """Raises ValueError, KeyError or OverflowError for anything else."""
    show: Callable[[Any], str] = str


def parse_integer(text: str) -> int:
    number = int(text)
    if abs(number) > _MAX_INTEGER:
        raise OverflowError(text)
    return number


def parse_seconds(text: str) -> timedelta:
    return _duration("seconds", text)


def kind_of(annotation: str) -> Kind:
    """The kind of a dataclass field, from its annotation as it stands in the source."""
    name = annotation.removesuffix(" | None")
    if name.startswith("Literal["):
        return _choice(ast.literal_eval(name.removeprefix("Literal")))
    return _KINDS[name]


def _duration(unit: str, text: str) -> timedelta:
    made = timedelta(**{unit: float(text)})
    if abs(made) > _MAX_DURATION:
        raise OverflowError(text)
    return made


def _duration_kind(unit: str) -> Kind:
    size = timedelta(**{unit: 1})
    return Kind(
        name=unit.upper(),
        rule=f"must be a number of {unit}, up to a hundred years",
        parse=lambda text: _duration(unit, text),
        show=lambda duration: f"{duration / size:g}",
    )


def _choice(words: list[str]) -> Kind:
    return Kind(
        name="|".join(words),
        rule=f"must be {' or '.join(words)}",
        parse=lambda text: {word: word for word in words}[text],
    )


def _retention_kind() -> Kind:
    days = _duration_kind("days")
    return Kind(
        name=f"{days.name}|never",
        rule=f"{days.rule}, or never",
        parse=lambda text: None if text == "never" else days.parse(text),
        show=lambda duration: "never" if duration is None else days.show(duration),
    )


def _retry_kind() -> Kind:
    names = {policy: name for name, policy in _RETRY_POLICIES.items()}
    return Kind(
        name="|".join(_RETRY_POLICIES),
        rule=f"must be {' or '.join(_RETRY_POLICIES)}",
        parse=lambda text: _RETRY_POLICIES[text](),
        show=lambda policy: names[type(policy)],
    )


SECONDS: Final = _duration_kind("seconds")
MILLISECONDS: Final = _duration_kind("milliseconds")
DAYS_OR_NEVER: Final = _retention_kind()
SWITCH: Final = Kind(
    name="yes|no",
    rule="must be yes or no",
    parse=lambda text: _BOOLEANS[text.lower()],
    show=lambda value: "yes" if value else "no",
)
_KINDS: Final = {
    "str": Kind(name="TEXT", rule="must be text", parse=str),
    "int": Kind(
        name="NUMBER", rule=f"must be a whole number up to {_MAX_INTEGER:,}", parse=parse_integer
    ),
    "bool": SWITCH,
    "Path": Kind(name="FILE", rule="must be a path", parse=Path),
    "timedelta": SECONDS,
    "RetryPolicy": _retry_kind(),
}
