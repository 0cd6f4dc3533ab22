"""`outrider relay` and `outrider consume`: long-running processes; `outrider config`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outrider.admin.inspector import OutboxInspector
from outrider.cli.output import json_option, print_result
from outrider.cli.processes import load_services, run_until_signal, serve
from outrider.cli.publishers import make_publisher
from outrider.cli.settings_options import (
    process_options,
    refuse_settings_beside_app,
    settings_options,
    settings_or_usage_error,
    warn_of_unknown_variables,
)
from outrider.cli.telemetry import log_and_count, process_metrics, traced
from outrider.consumer.consumer import EventConsumer
from outrider.relay.relay import OutboxRelay
from outrider.store.engines import open_engine
from outrider.store.schema.tables import OutboxTables
from outrider.store.sql_store import SqlOutboxStore

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from outrider.lifecycle import BackgroundService
    from outrider.settings.process import ProcessConfig
    from outrider.settings.settings import Settings


@click.command()
@settings_options
@json_option
def config(*, as_json: bool, **flags: str | None) -> None:
    """Show every setting and where its value comes from, without passwords.

    \b
    OUTBOX_BATCH_SIZE=500 outrider config
    """
    warn_of_unknown_variables()
    found = settings_or_usage_error(flags).in_effect
    facts = {
        each.setting.name: {"value": each.masked_text, "source": each.source} for each in found
    }
    rows = [(each.setting.name, each.masked_text or "-", each.source) for each in found]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"{name:<{names}}  {value:<{values}}  {source}" for name, value, source in rows]
    print_result(facts, "\n".join(lines), as_json=as_json)


@click.command()
@click.argument("app", required=False)
@settings_options
def relay(*, app: str | None, **flags: str | None) -> None:
    """Publish events from the outbox to a sink until SIGTERM or Ctrl-C.

    The first signal lets the relay finish the batches in flight; the second ends it at once.
    APP is module:name of your own OutboxRelay, of a list of them, or of a function that makes
    them; then only --processes, --health, --quiet and --audit count, and other flags are refused.

    \b
    outrider relay --database postgresql://app@localhost/shop --to amqp://localhost
    outrider relay --to kafka://localhost:9092 --destination orders --sink kafka
    outrider relay shop.main:relays
    """
    warn_of_unknown_variables()
    if app:
        refuse_settings_beside_app(app, flags)
    settings = settings_or_usage_error(flags)
    health = settings.process.health

    def make() -> Coroutine[Any, Any, None]:
        return _run_app(app, OutboxRelay, health) if app else _relay(settings)

    serve(make, settings.process)


@click.command()
@click.argument("app")
@process_options
def consume(*, app: str, process: ProcessConfig) -> None:
    """Deliver events from a broker to handlers until SIGTERM or Ctrl-C.

    APP is module:name of an EventConsumer, of a list of them, or of a function that makes them.

    \b
    outrider consume billing.main:consumer
    """
    refuse_settings_beside_app(app, {})

    def make() -> Coroutine[Any, Any, None]:
        return _run_app(app, EventConsumer, process.health)

    serve(make, process)


async def _run_app(app: str, kind: type[BackgroundService], health: str | None) -> None:
    async with load_services(app, kind) as services:
        await run_until_signal(services, health, process_metrics())


async def _relay(settings: Settings) -> None:
    process = settings.process
    if process.database is None:
        raise click.UsageError("no database: give --database or DATABASE_URL")
    engine = open_engine(process.database)
    tables = OutboxTables(settings.names)
    park = process.after_failure == "park"
    store = SqlOutboxStore(engine, tables, sink=process.sink, park=park)
    on_signal, metrics = log_and_count(OutboxInspector(engine, tables))
    publisher = traced(make_publisher(process), process.sink)
    service = OutboxRelay(store, publisher, settings.relay, on_signal=on_signal)
    try:
        await run_until_signal([service], process.health, metrics)
    finally:
        await engine.dispose()
