"""`outrider relay` and `outrider config`: a relay as a process of its own."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy.ext.asyncio import create_async_engine

from outrider.cli.database import database_url
from outrider.errors import ConfigurationError
from outrider.observability.logging import log_signals
from outrider.relay import OutboxRelay
from outrider.settings import SETTINGS, Settings, read_settings
from outrider.sql.store import SqlOutbox
from outrider.sql.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.brokers.rabbitmq import Topology
    from outrider.ports import EventPublisher


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
@settings_options
@click.option("--workers", type=click.IntRange(1, 64), default=1, help="How many processes.")
@click.option("--quiet", is_flag=True, help="Log warnings only.")
def relay(*, workers: int, quiet: bool, **flags: str | None) -> None:
    """Bring events from the outbox to the broker until SIGTERM or Ctrl-C.

    The first signal lets it finish what is in hand, the second ends it at once.

    \b
    outrider relay --database postgresql://app@localhost/shop --rabbitmq-url amqp://localhost
    """
    settings = _settings(flags)
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("outrider.audit").setLevel(logging.WARNING)
    if workers > 1:
        sys.exit(_run_several(workers))
    try:
        _run_loop(_serve(settings))
    except ConfigurationError as problem:
        raise click.ClickException(str(problem)) from None


async def _serve(settings: Settings) -> None:
    url = settings.values["database"]
    if url is None:
        raise ConfigurationError("no database: give --database or DATABASE_URL")
    engine = create_async_engine(database_url(url), hide_parameters=True)
    tables = OutboxTables(settings.names())
    store = SqlOutbox(engine, tables, park=settings.values["after_failure"])
    made = OutboxRelay(store, _publisher(settings), settings.relay_config(), on_signal=log_signals)
    _stop_on_signals(made)
    try:
        await made.run()
    finally:
        await engine.dispose()


def _publisher(settings: Settings) -> EventPublisher:
    url = settings.values["rabbitmq_url"]
    if url is None:
        raise ConfigurationError("no broker: give --rabbitmq-url or RABBITMQ_URL")
    from outrider.brokers.rabbitmq import RabbitMQPublisher

    exchange = settings.values["rabbitmq_exchange"]
    topology = _topology(settings.values["rabbitmq_topology"], exchange)
    return RabbitMQPublisher(url, exchange=exchange, topology=topology)


def _topology(name: str | None, exchange: str) -> Topology | None:
    from outrider.brokers.rabbitmq import Topology, messaging_topology

    if name in (None, "messaging"):
        return messaging_topology(exchange) if name else None
    module, _, attribute = str(name).partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError):
        raise ConfigurationError(f"no topology {name!r}: say messaging or module:name") from None
    if not isinstance(found, Topology):
        raise ConfigurationError(f"{name} is a {type(found).__name__}, not a Topology")
    return found


def _stop_on_signals(made: OutboxRelay) -> None:
    loop, stops = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def stop() -> None:
        if stops:
            os._exit(1)
        stops.add(loop.create_task(made.stop()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _run_loop(work: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


def _run_several(workers: int) -> int:
    """The same command as several processes; they share the lanes among themselves."""
    command = [sys.executable, "-m", "outrider", *_without_workers(sys.argv[1:])]
    children = [subprocess.Popen(command) for _ in range(workers)]

    def pass_on(number: int, _frame: object) -> None:
        for child in children:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    # A terminal sends Ctrl-C to the children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return max(child.wait() for child in children)


def _without_workers(arguments: list[str]) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if skip or argument == "--workers":
            skip = not skip
        elif not argument.startswith("--workers="):
            kept.append(argument)
    return kept
