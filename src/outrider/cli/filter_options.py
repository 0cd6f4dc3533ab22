"""The filter options that lists and bulk actions share."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from outrider.admin.filters import STATUSES, EventFilter
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

_OPTIONS: Final = (
    ("--sink", "sink", "Events of this sink."),
    ("--event-type", "event_type", "An event type, or a pattern such as 'order.*'."),
    ("--aggregate-type", "aggregate_type", "Of what kind of thing."),
    ("--aggregate-id", "aggregate_id", "Of which thing."),
    ("--error", "error", "The last error, exactly."),
    ("--since", "since", "Recorded at or after this time, such as 2026-01-31T12:00Z."),
    ("--until", "until", "Recorded before this time."),
    ("--first", "first", "The lowest position."),
    ("--last", "last", "The highest position."),
)


def filter_options(command: Callable[..., R]) -> Callable[..., R]:
    """--type and its like, handed over as one EventFilter."""

    @wraps(command)
    def with_filter(**given: Any) -> R:
        names = [name for _, name, _ in _OPTIONS] + ["status", "ids"]
        texts = {name: given.pop(name, None) for name in names}
        ids = texts.pop("ids") or ()
        try:
            wanted = [EventFilter.parse({**texts, "event_id": text}) for text in ids or [None]]
        except ConfigurationError as problem:
            raise click.UsageError(str(problem)) from None
        return command(wanted=wanted, **given)

    made: Callable[..., R] = with_filter
    for flag, name, text in reversed(_OPTIONS):
        made = click.option(flag, name, help=text)(made)
    made = click.option("--status", type=click.Choice(STATUSES), help="With this status.")(made)
    return click.argument("ids", nargs=-1)(made)
