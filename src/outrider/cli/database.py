"""How a command reaches the database: options, drivers, masked messages, exit codes."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import quote, quote_plus

import click
from sqlalchemy import URL, NullPool
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from outrider.errors import ConfigurationError
from outrider.store.engines import with_driver
from outrider.store.schema.names import OutboxNames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy.ext.asyncio import AsyncEngine

P = ParamSpec("P")
R = TypeVar("R")


class ProblemFound(click.ClickException):
    exit_code = 1


class CannotConnect(click.ClickException):
    exit_code = 3


class Interrupted(click.ClickException):
    exit_code = 130


def _database_url(_: click.Context, __: click.Parameter, value: str) -> URL:
    return database_url(value)


def database_url(value: str) -> URL:
    try:
        return with_driver(value)
    except ConfigurationError as problem:
        raise click.BadParameter(str(problem)) from None


def database_option(command: Callable[P, R]) -> Callable[P, R]:
    return click.option(
        "--database",
        callback=_database_url,
        metavar="URL",
        envvar="DATABASE_URL",
        show_envvar=True,
        required=True,
        help="postgresql://user:password@host/name or sqlite:///file",
    )(command)


def names_options(command: Callable[..., R]) -> Callable[..., R]:
    """--table and its like, handed over as one OutboxNames."""

    @click.option("--table", envvar="OUTBOX_TABLE", show_envvar=True, help="Default: outbox.")
    @click.option(
        "--schema", envvar="OUTBOX_SCHEMA", show_envvar=True, help="Where the tables are."
    )
    @click.option("--prefix", help="Begins the other tables' names. Default: the table and _.")
    @click.option("--processed", help="The inbox table. Default: processed_events.")
    @wraps(command)
    def with_names(
        *,
        table: str | None,
        schema: str | None,
        prefix: str | None,
        processed: str | None,
        **rest: Any,
    ) -> R:
        given = {"table": table, "schema": schema, "prefix": prefix, "processed": processed}
        try:
            names = OutboxNames(**{key: name for key, name in given.items() if name is not None})
        except ConfigurationError as problem:
            raise click.UsageError(str(problem)) from None
        return command(names=names, **rest)

    return with_names


def masked(url: URL, message: object) -> str:
    """The first line of a message, without the password in any spelling."""
    line = str(message).strip().partition("\n")[0]
    for secret in filter(None, (url.password, url.query.get("password"))):
        for spelling in (str(secret), quote(str(secret), safe=""), quote_plus(str(secret))):
            line = line.replace(spelling, "***")
    return line


def run(url: URL, work: Callable[[AsyncEngine], Awaitable[R]], *, may_create: bool = False) -> R:
    """Do the work with an engine of its own; every failure becomes one line and an exit code."""
    if url.get_backend_name() == "sqlite":
        _open_file(url.database or "", "rwc" if may_create else "rw")
    return asyncio.run(_run(url, work))


def _open_file(path: str, mode: str) -> None:
    """Looking makes no file of a misspelt name; and aiosqlite's thread would outlive a failure."""
    try:
        sqlite3.connect(f"file:{quote(path)}?mode={mode}", uri=True).close()
    except sqlite3.Error as error:
        raise CannotConnect(f"cannot open {path}: {error}") from None


async def _run(url: URL, work: Callable[[AsyncEngine], Awaitable[R]]) -> R:
    engine = _engine(url)
    try:
        await _reach(engine)
        return await work(engine)
    except (ConfigurationError, SQLAlchemyError) as problem:
        raise ProblemFound(masked(url, _reason(problem))) from None
    finally:
        await engine.dispose()


def _engine(url: URL) -> AsyncEngine:
    try:
        return create_async_engine(url, poolclass=NullPool, hide_parameters=True)
    except ModuleNotFoundError as missing:
        extra = {"asyncpg": "postgres", "psycopg": "psycopg"}.get(missing.name or "", "sqlite")
        hint = f"{missing.name} is missing: pip install 'outrider[{extra}]'"
        raise click.UsageError(hint) from None


async def _reach(engine: AsyncEngine) -> None:
    url = engine.url
    try:
        async with engine.connect():
            pass
    except Exception as error:  # noqa: BLE001 - drivers raise their own kinds here, and OSError
        # What follows the ? may hold a password too.
        message = f"cannot connect to {url.set(query={})!r}: {_reason(error)}"
        raise CannotConnect(masked(url, message)) from None


def _reason(error: BaseException) -> str:
    """What the database or its driver said, out of SQLAlchemy's wrapping."""
    said = getattr(error, "orig", None) or error
    said = said.__cause__ or said
    return str(said) or type(said).__name__
