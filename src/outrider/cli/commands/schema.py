"""`outrider schema`: create, print and check the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outrider.cli.database import ProblemFound, database_option, run
from outrider.cli.output import json_option, print_result
from outrider.cli.settings_options import names_options
from outrider.errors import ConfigurationError
from outrider.store.schema import migrate as steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL

    from outrider.store.schema.names import OutboxNames

_BEGIN = "-- For a transaction of your own: --no-transaction, else this COMMIT ends it.\nBEGIN"
_VERSION = click.IntRange(0, steps.LATEST)


def _role_options(command: Callable[..., None]) -> Callable[..., None]:
    for role in reversed(steps.ROLES):
        name, default = f"--{role}-role", f"outrider_{role}"
        text = f"With --roles: the database role of the {role}."
        command = click.option(name, default=default, show_default=True, help=text)(command)
    return command


@click.group()
def schema() -> None:
    """Create, print and check the tables.

    \b
    outrider schema status --database postgresql://app@localhost/shop
    """


@schema.command()
@database_option
@names_options
@click.option("--to", type=_VERSION, help="Stop at this version. Default: the latest.")
@json_option
def apply(*, database: URL, names: OutboxNames, to: int | None, as_json: bool) -> None:
    """Migrate the tables to the latest version; does nothing if they have it.

    All steps run in one transaction under a lock, so several processes may call this at once.

    \b
    outrider schema apply --database sqlite:///shop.db
    """
    applied = run(database, lambda engine: steps.apply(engine, names, to), may_create=True)
    if not applied and to is None and (damage := run(database, lambda e: steps.check(e, names))):
        raise ProblemFound(f"no step is missing, but {'; '.join(damage)}")
    text = f"{names.table}: applied version {', '.join(map(str, applied))}."
    text = text if applied else f"{names.table}: nothing to do."
    print_result({"applied": applied}, text, as_json=as_json)


@schema.command("print")
@names_options
@click.option(
    "--dialect",
    type=click.Choice(["postgresql", "sqlite"]),
    default="postgresql",
    show_default=True,
    help="The database that the SQL is for.",
)
@click.option(
    "--from",
    "since",
    type=_VERSION,
    default=0,
    help="The version that the tables have. Default: 0.",
)
@click.option(
    "--to",
    type=_VERSION,
    default=steps.LATEST,
    help="The version to migrate to. Default: the latest.",
)
@click.option(
    "--roles",
    is_flag=True,
    help="Print the GRANT statements for these roles instead of the tables.",
)
@click.option(
    "--no-transaction",
    "bare",
    is_flag=True,
    help="Without BEGIN and COMMIT, to run it in a transaction of your own.",
)
@_role_options
@json_option
def print_sql(
    *,
    names: OutboxNames,
    dialect: str,
    since: int,
    to: int,
    roles: bool,
    bare: bool,
    as_json: bool,
    **role: str,
) -> None:
    """Print the migrations as SQL; needs no database.

    With --to below --from it prints the downgrade. The SQL is a transaction of its own: with
    `psql --single-transaction`, or inside another script's transaction, add --no-transaction.

    \b
    outrider schema print --from 1 | psql shop
    outrider schema print --roles --producer-role shop_api | psql shop
    """
    if roles and dialect != "postgresql":
        raise click.UsageError(f"--roles: {dialect} has no roles")
    named = {name.removesuffix("_role"): given for name, given in role.items()}
    sql = steps.grants(names, **named) if roles else _statements(dialect, names, since, to)
    wrapped = sql if bare or not sql else [_BEGIN, *sql, "COMMIT"]
    text = "\n".join(f"{statement};" for statement in wrapped)
    print_result({"statements": sql}, text, as_json=as_json)


@schema.command()
@database_option
@names_options
@json_option
def status(*, database: URL, names: OutboxNames, as_json: bool) -> None:
    """Show the version of the tables and the latest version.

    \b
    outrider schema status --database sqlite:///shop.db --json
    """
    current = run(database, lambda engine: steps.current_version(engine, names))
    text = f"{names.table}: version {current}, latest {steps.LATEST}"
    print_result({"current": current, "latest": steps.LATEST}, text, as_json=as_json)


@schema.command()
@database_option
@names_options
@json_option
def check(*, database: URL, names: OutboxNames, as_json: bool) -> None:
    """Compare the tables with what they should be; exit with 1 if there is a problem.

    \b
    outrider schema check --database sqlite:///shop.db && start-the-relay
    """
    problems = run(database, lambda engine: steps.check(engine, names))
    text = "\n".join(problems) or f"{names.table}: all is well."
    print_result({"problems": problems}, text, as_json=as_json)
    raise SystemExit(1 if problems else 0)


def _statements(dialect: str, names: OutboxNames, since: int, to: int) -> list[str]:
    try:
        return steps.statements(dialect, names, since=since, to=to)
    except ConfigurationError as problem:
        raise click.UsageError(str(problem)) from None
