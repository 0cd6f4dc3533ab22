"""`outrider schema`: make, print and check the tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from outrider.cli.database import database_option, names_options, run
from outrider.errors import ConfigurationError
from outrider.store.schema import migrate as steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL

    from outrider.store.schema.names import OutboxNames

_VERSION = click.IntRange(0, steps.LATEST)
_json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


def _role_options(command: Callable[..., None]) -> Callable[..., None]:
    for role in reversed(steps.ROLES):
        option = click.option(f"--{role}-role", default=f"outrider_{role}", show_default=True)
        command = option(command)
    return command


@click.group()
def schema() -> None:
    """Make, print and check the tables.

    \b
    outrider schema status --database postgresql://app@localhost/shop
    """


@schema.command()
@database_option
@names_options
@click.option("--to", type=_VERSION, help="Stop at this version. Default: the latest.")
@_json_option
def apply(*, database: URL, names: OutboxNames, to: int | None, as_json: bool) -> None:
    """Bring the tables to the latest version; harmless when they are.

    All or nothing, under a lock: several processes may try at once.

    \b
    outrider schema apply --database sqlite:///shop.db
    """
    applied = run(database, lambda engine: steps.apply(engine, names, to), may_create=True)
    text = f"{names.table}: applied version {', '.join(map(str, applied))}."
    _say(as_json, {"applied": applied}, text if applied else f"{names.table}: nothing to do.")


@schema.command("print")
@names_options
@click.option(
    "--dialect",
    type=click.Choice(["postgresql", "sqlite"]),
    default="postgresql",
    show_default=True,
)
@click.option("--from", "since", type=_VERSION, default=0, help="The version you have. Default: 0.")
@click.option("--to", type=_VERSION, default=steps.LATEST, help="The version you want.")
@click.option("--roles", is_flag=True, help="The GRANTs for these roles instead of the tables.")
@_role_options
@_json_option
def print_sql(
    *,
    names: OutboxNames,
    dialect: str,
    since: int,
    to: int,
    roles: bool,
    as_json: bool,
    **role: str,
) -> None:
    """Print the SQL for somebody else to run; needs no database.

    With --to below --from the steps lead back.

    \b
    outrider schema print --from 1 | psql shop
    outrider schema print --roles --producer-role shop_api | psql shop
    """
    if roles and dialect != "postgresql":
        raise click.UsageError(f"--roles: {dialect} has no roles")
    named = {name.removesuffix("_role"): given for name, given in role.items()}
    sql = steps.grants(names, **named) if roles else _statements(dialect, names, since, to)
    wrapped = ["BEGIN", *sql, "COMMIT"] if sql else []
    _say(as_json, {"statements": sql}, "\n".join(f"{statement};" for statement in wrapped))


@schema.command()
@database_option
@names_options
@_json_option
def status(*, database: URL, names: OutboxNames, as_json: bool) -> None:
    """Show the version of the tables and the latest one.

    \b
    outrider schema status --database sqlite:///shop.db --json
    """
    current = run(database, lambda engine: steps.current_version(engine, names))
    text = f"{names.table}: version {current}, latest {steps.LATEST}"
    _say(as_json, {"current": current, "latest": steps.LATEST}, text)


@schema.command()
@database_option
@names_options
@_json_option
def check(*, database: URL, names: OutboxNames, as_json: bool) -> None:
    """Look for what is missing or damaged; exit with 1 if there is anything.

    \b
    outrider schema check --database sqlite:///shop.db && start-the-relay
    """
    problems = run(database, lambda engine: steps.check(engine, names))
    _say(as_json, {"problems": problems}, "\n".join(problems) or f"{names.table}: all is well.")
    raise SystemExit(1 if problems else 0)


def _statements(dialect: str, names: OutboxNames, since: int, to: int) -> list[str]:
    try:
        return steps.statements(dialect, names, since=since, to=to)
    except ConfigurationError as problem:
        raise click.UsageError(str(problem)) from None


def _say(as_json: bool, facts: dict[str, Any], text: str) -> None:
    if as_json or text:
        click.echo(json.dumps(facts) if as_json else text)
