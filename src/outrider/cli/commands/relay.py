"""`outrider relay`, `outrider consume`, `outrider config`: what runs as a process of its own."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from outrider.admin.inspector import OutboxInspector
from outrider.cli.database import database_url
from outrider.cli.processes import parts_of, run_until_signal, serve, serving_options
from outrider.cli.publishers import publisher_of
from outrider.cli.telemetry import counted, numbers_of_process, traced
from outrider.consumer.consumer import EventConsumer
from outrider.errors import ConfigurationError
from outrider.observability.logging import log_signals
from outrider.relay.relay import OutboxRelay
from outrider.settings.settings import SETTINGS, Settings, read_settings
from outrider.store.engines import open_engine
from outrider.store.schema.tables import OutboxTables
from outrider.store.sql_store import SqlOutboxStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from outrider.lifecycle import BackgroundService


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Every setting as a flag; what is not given is looked for in the environment."""
    for setting in reversed(SETTINGS):
        names = ", ".join(setting.env)
        default = f"; default {setting.default}" if setting.default is not None else ""
        text = f"{setting.help} [{names}{default}]"
        command = click.option(setting.flag, setting.name, metavar="…", help=text)(command)
    return command


def _settings(flags: dict[str, str | None]) -> Settings:
    try:
        return read_settings(flags, os.environ)
    except ConfigurationError as problem:
        raise click.UsageError(str(problem)) from None


@click.command()
@settings_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def config(*, as_json: bool, **flags: str | None) -> None:
    """Show all settings, where each comes from, and no password.

    \b
    OUTBOX_BATCH_SIZE=500 outrider config
    """
    shown = _settings(flags).shown()
    if as_json:
        found = {name: {"value": text, "source": source} for name, text, source in shown}
        click.echo(json.dumps(found, indent=1))
        return
    for name, text, source in shown:
        click.echo(f"{name:<20}{text or '-':<50}{source}")


@click.command()
@click.argument("app", required=False)
@settings_options
@serving_options
def relay(
    *,
    app: str | None,
    processes: int,
    health: str | None,
    quiet: bool,
    audit: bool,
    **flags: str | None,
) -> None:
    """Bring events from the outbox to the sink until SIGTERM or Ctrl-C.

    The first signal lets it finish what is in hand, the second ends it at once. APP is
    module:name of an OutboxRelay of your own, of several, or of a function that makes them.

    \b
    outrider relay --database postgresql://app@localhost/shop --to amqp://localhost
    outrider relay --to kafka://localhost:9092 --destination orders --sink kafka
    outrider relay shop.main:relays
    """
    settings = _settings(flags)

    def make() -> Coroutine[Any, Any, None]:
        return _run_app(app, OutboxRelay, health) if app else _relay(settings, health)

    serve(make, processes=processes, quiet=quiet, audit=audit)


@click.command()
@click.argument("app")
@serving_options
def consume(*, app: str, processes: int, health: str | None, quiet: bool, audit: bool) -> None:
    """Bring events from a broker to handlers until SIGTERM or Ctrl-C.

    APP is module:name of an EventConsumer, of several, or of a function that makes them.

    \b
    outrider consume billing.main:consumer
    """

    def make() -> Coroutine[Any, Any, None]:
        return _run_app(app, EventConsumer, health)

    serve(make, processes=processes, quiet=quiet, audit=audit)


async def _run_app(app: str, kind: type[BackgroundService], health: str | None) -> None:
    async with parts_of(app, kind) as parts:
        for part in parts:
            part.on_signal = part.on_signal or log_signals
        await run_until_signal(parts, health, numbers_of_process())


async def _relay(settings: Settings, health: str | None) -> None:
    url = settings.values["database"]
    if url is None:
        raise ConfigurationError("no database: give --database or DATABASE_URL")
    engine = open_engine(database_url(url))
    tables = OutboxTables(settings.names())
    sink, park = settings.values["sink"], settings.values["after_failure"]
    store = SqlOutboxStore(engine, tables, sink=sink, park=park)
    on_signal, numbers = counted(OutboxInspector(engine, tables))
    config = settings.relay_config()
    publisher = traced(publisher_of(settings), sink)
    made = OutboxRelay(store, publisher, config, on_signal=on_signal)
    try:
        await run_until_signal([made], health, numbers)
    finally:
        await engine.dispose()
