"""`outrider doctor`: checks the settings, the database and the broker; each fault has a cure."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from outrider.admin.checkup import check_database
from outrider.cli.database import CannotConnect, run
from outrider.cli.output import json_option, print_result, table
from outrider.cli.publishers import make_publisher
from outrider.cli.settings_options import settings_options, warn_of_unknown_variables
from outrider.errors import BrokerUnavailable, ConfigurationError
from outrider.lifecycle import close_publisher, open_publisher
from outrider.ports import CheckResult, DurabilityCheck
from outrider.settings.settings import Settings, read_settings
from outrider.store.engines import with_driver
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from outrider.ports import EventPublisher
    from outrider.settings.process import RelayProcessConfig

_MARKS = {"fine": "✓", "warning": "!", "fault": "✗"}
_DATABASE_AWAY = "is it running, and are address, user and password right?"


@click.command()
@settings_options
@json_option
def doctor(*, as_json: bool, **flags: str | None) -> None:
    """Check settings, database and broker, and show a cure; exit with 1 if there is a fault.

    It exits with 3 if the database cannot be reached.

    \b
    outrider doctor --database postgresql://app@localhost/shop --to amqp://localhost
    """
    warn_of_unknown_variables()
    checks = _check(flags)
    rows = [(_MARKS[check.verdict], check.subject, check.text, check.cure) for check in checks]
    text = table("doctor", ("", "check", "result", "cure"), rows)
    print_result({"checks": checks}, text, as_json=as_json)
    if any(check.cure == _DATABASE_AWAY for check in checks):
        raise SystemExit(CannotConnect.exit_code)
    raise SystemExit(1 if any(check.verdict == "fault" for check in checks) else 0)


def _check(flags: dict[str, str | None]) -> list[CheckResult]:
    try:
        settings = read_settings(flags, os.environ)
    except ConfigurationError as problem:
        return [CheckResult("settings", "fault", str(problem), "see `outrider config`")]
    return _check_database(settings) + _check_broker(settings.process)


def _check_database(settings: Settings) -> list[CheckResult]:
    url = settings.process.database
    if url is None:
        return [
            CheckResult("database", "fault", "none is named", "give --database or DATABASE_URL")
        ]
    tables = OutboxTables(settings.names)
    try:
        return run(with_driver(url), lambda engine: check_database(engine, tables))
    except click.ClickException as problem:
        cure = _DATABASE_AWAY if isinstance(problem, CannotConnect) else "do what it says"
        return [CheckResult("database", "fault", problem.message, cure)]


def _check_broker(process: RelayProcessConfig) -> list[CheckResult]:
    if process.to is None:
        return [
            CheckResult("broker", "warning", "none is named", "give --to, if relays run from here")
        ]
    try:
        publisher = make_publisher(process)
    except ConfigurationError as problem:
        return [CheckResult("broker", "fault", str(problem), "see `outrider relay --help`")]
    return asyncio.run(_connect(publisher))


async def _connect(publisher: EventPublisher) -> list[CheckResult]:
    checks: list[CheckResult] = []
    try:
        if isinstance(publisher, DurabilityCheck):
            checks = await publisher.check_durability()
        else:
            await open_publisher(publisher)
    except BrokerUnavailable as error:
        return [
            CheckResult("broker", "fault", str(error), "is it running, and is the address right?")
        ]
    except ConfigurationError as error:
        cure = "change what it says; waiting will not help"
        return [CheckResult("broker", "fault", str(error), cure)]
    finally:
        await close_publisher(publisher)
    return [CheckResult("broker", "fine", f"{publisher} answers"), *checks]
