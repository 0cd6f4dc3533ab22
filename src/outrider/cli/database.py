"""How a command connects to the database: its URL, exit codes, errors without passwords."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from urllib.parse import quote

import click
from sqlalchemy import URL, NullPool
from sqlalchemy.exc import SQLAlchemyError

from outrider.errors import ConfigurationError
from outrider.settings.fields import settings_of
from outrider.settings.masking import mask_password
from outrider.settings.process import RelayProcessConfig
from outrider.store.engines import describe, make_engine, with_driver
from outrider.store.schema.migrate import refuse_tables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.store.schema.names import OutboxNames

P = ParamSpec("P")
R = TypeVar("R")


class ProblemFound(click.ClickException):
    exit_code = 1


class CannotConnect(click.ClickException):
    exit_code = 3


class Interrupted(click.ClickException):
    exit_code = 130


def database_option(command: Callable[P, R]) -> Callable[P, R]:
    """--database, passed on as a URL with a driver for asyncio."""
    (setting,) = (each for each in settings_of(RelayProcessConfig) if each.name == "database")
    return click.option(
        setting.flag,
        callback=_with_driver,
        metavar="URL",
        envvar=setting.environment,
        show_envvar=True,
        required=True,
        help=setting.help,
    )(command)


def _with_driver(_: click.Context, __: click.Parameter, value: str) -> URL:
    try:
        return with_driver(value)
    except ConfigurationError as problem:
        raise click.BadParameter(str(problem)) from None


def _first_line(message: str, url: URL) -> str:
    return mask_password(message.strip().partition("\n")[0], url)


def run(
    url: URL,
    work: Callable[[AsyncEngine], Awaitable[R]],
    names: OutboxNames | None = None,
    *,
    may_create: bool = False,
) -> R:
    """Run the work with its own engine; every failure becomes one line and an exit code.

    With `names`, the tables must be there, in the version of this release.
    """
    if url.get_backend_name() == "sqlite":
        _open_file(url.database or "", "rwc" if may_create else "rw")
    return asyncio.run(_run(url, work, names))


def _open_file(path: str, mode: str) -> None:
    """Fails early if the file cannot be opened, so that a misspelt name creates no file.

    Besides, the thread of aiosqlite would outlive a failure to connect.
    """
    try:
        sqlite3.connect(f"file:{quote(path)}?mode={mode}", uri=True).close()
    except sqlite3.Error as error:
        raise CannotConnect(f"cannot open {path}: {error}") from None


async def _run(
    url: URL, work: Callable[[AsyncEngine], Awaitable[R]], names: OutboxNames | None
) -> R:
    engine = _engine(url)
    try:
        await _connect(engine, names)
        return await work(engine)
    except (ConfigurationError, SQLAlchemyError) as problem:
        raise ProblemFound(_first_line(_reason(problem), url)) from None
    finally:
        await engine.dispose()


def _engine(url: URL) -> AsyncEngine:
    try:
        return make_engine(url, poolclass=NullPool)
    except ConfigurationError as problem:
        raise click.UsageError(str(problem)) from None


async def _connect(engine: AsyncEngine, names: OutboxNames | None) -> None:
    url = engine.url
    try:
        async with engine.connect() as connection:
            if names is not None:
                await connection.run_sync(refuse_tables, names)
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 - drivers raise errors of their own, and OSError
        message = f"cannot connect to {describe(url)}: {_reason(error)}"
        raise CannotConnect(_first_line(message, url)) from None


def _reason(error: BaseException) -> str:
    """The message of the database or its driver, without what SQLAlchemy adds to it."""
    original = getattr(error, "orig", None) or error
    original = original.__cause__ or original
    return str(original) or type(original).__name__
