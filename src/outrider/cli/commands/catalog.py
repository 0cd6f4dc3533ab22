"""`outrider catalog`: event types as JSON Schema or AsyncAPI, and a check for what would break."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from outrider.cli.output import json_option, print_result
from outrider.cli.processes import load_module
from outrider.errors import ConfigurationError
from outrider.events.catalog import asyncapi, compare
from outrider.events.catalog import catalog as read_catalog

_modules = click.argument("modules", nargs=-1, required=True, metavar="MODULE…")


@click.group()
def catalog() -> None:
    """Show event types, and find changes that would break stored rows or consumers.

    \b
    outrider catalog show shop.events > catalog.json
    outrider catalog check shop.events --against catalog.json
    """


@catalog.command()
@_modules
@click.option("--asyncapi", "as_asyncapi", is_flag=True, help="As an AsyncAPI 3 document.")
@click.option("--title", default="Events", help="The title of that document.")
@click.option(
    "--json", is_flag=True, expose_value=False, help="The default: there is no other format."
)
def show(*, modules: tuple[str, ...], as_asyncapi: bool, title: str) -> None:
    """Print every event type of these modules with the schema of its payload, as JSON.

    \b
    outrider catalog show shop.events --asyncapi --title Shop
    """
    found = _read(modules)
    click.echo(json.dumps(asyncapi(found, title=title) if as_asyncapi else found, indent=1))


@catalog.command()
@_modules
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="What `outrider catalog show` printed for the release that runs now.",
)
@json_option
def check(*, modules: tuple[str, ...], against: Path, as_json: bool) -> None:
    """Exit with 1 if an event class has changed in a way that breaks rows or consumers.

    Also tells which changes consumers of the old release refuse, so that you deploy them first.

    \b
    outrider catalog check shop.events --against catalog.json
    """
    try:
        before: dict[str, Any] = json.loads(against.read_text())
    except ValueError:
        raise click.UsageError(f"{against} is not JSON") from None
    changes = compare(before, _read(modules))
    lines = changes.breaks or ["nothing breaks."]
    if changes.consumers_first:
        lines = [*lines, "deploy the consumers before the producers:", *changes.consumers_first]
    print_result(asdict(changes), "\n".join(lines), as_json=as_json)
    raise SystemExit(1 if changes.breaks else 0)


def _read(modules: tuple[str, ...]) -> dict[str, Any]:
    try:
        for module in modules:
            load_module(module)
        return read_catalog()
    except ConfigurationError as problem:
        raise click.ClickException(str(problem)) from None
