"""Options that select events, shared by all commands that act on several events."""

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
    ("--aggregate-type", "aggregate_type", "Events of this type of aggregate."),
    ("--aggregate-id", "aggregate_id", "Events of the aggregate with this id."),
    ("--error", "error", "Events whose last error is exactly this text."),
    ("--since", "since", "Events recorded at or after this time, such as 2026-01-31T12:00Z."),
    ("--until", "until", "Events recorded before this time."),
    ("--first", "first", "Events from this position on."),
    ("--last", "last", "Events up to this position."),
)


def filter_options(command: Callable[..., R]) -> Callable[..., R]:
    """--event-type and the other filters, passed on as `wanted`: one EventFilter per id given."""

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
    made = click.option(
        "--status",
        metavar=f"[{'|'.join(STATUSES)}]",
        shell_complete=lambda _context, _option, text: [s for s in STATUSES if s.startswith(text)],
        help="Events with this status.",
    )(made)
    return click.argument("ids", nargs=-1)(made)
