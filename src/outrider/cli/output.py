"""Output of commands: tables for people, JSON for programs, no control characters."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def print_result(facts: object, text: str | Table | None, *, as_json: bool) -> None:
    """Prints the facts as JSON, or else the text."""
    try:
        _print(facts, text, as_json=as_json)
    except OSError as error:
        if error.errno == errno.EPIPE:  # click ends quietly if nobody reads on
            raise
        # Otherwise Python would try once more at its end, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.ClickException(f"cannot write the output: {error.strerror}") from None


def _print(facts: object, text: str | Table | None, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, default=_to_json))
    elif isinstance(text, Table):
        Console(width=None if is_terminal() else 160).print(text)
    elif text:
        click.echo(text)


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    made = Table(*heads, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        made.add_row(*(to_printable(value) for value in row))
    return made


def to_printable(value: object) -> str:
    """The value as text that neither moves the cursor of a terminal nor is markup for Rich."""
    text = _to_text(value)
    return "".join(c if c.isprintable() else "�" for c in text).replace("[", "\\[")


def duration_text(duration: timedelta | None) -> str:
    """Such as "3 min", with the largest unit that counts at least two."""
    if duration is None:
        return "-"
    seconds = int(duration.total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _to_text(value: object) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case timedelta():
            return duration_text(value)
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case _:
            return str(value)


def _to_json(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        case _:
            return str(value)


def is_terminal() -> bool:
    return Console().is_terminal
