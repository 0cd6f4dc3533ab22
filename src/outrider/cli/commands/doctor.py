"""`outrider doctor`: everything that is wrong with a set-up, line by line, with a cure."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from outrider.admin.checkup import check_database
from outrider.cli.commands.relay import settings_options
from outrider.cli.database import database_url, run
from outrider.cli.output import json_option, say, table
from outrider.cli.publishers import publisher_of
from outrider.errors import BrokerUnavailable, ConfigurationError
from outrider.ports import CheckResult, DurabilityCheck
from outrider.settings.settings import Settings, read_settings
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from outrider.ports import EventPublisher

_MARKS = {"fine": "✓", "warning": "!", "fault": "✗"}


@click.command()
@settings_options
@json_option
def doctor(*, as_json: bool, **flags: str | None) -> None:
    """Look for what is wrong, and say what to do; exit with 1 if there is a fault.

    \b
    outrider doctor --database postgresql://app@localhost/shop --to amqp://localhost
    """
    found = _settings(flags)
    findings = _database(found) + _broker(found) if isinstance(found, Settings) else [found]
    rows = [(_MARKS[f.verdict], f.subject, f.text, f.cure) for f in findings]
    shown = table("doctor", ("", "what", "found", "cure"), rows)
    say({"findings": findings}, shown, as_json=as_json)
    raise SystemExit(1 if any(f.verdict == "fault" for f in findings) else 0)


def _settings(flags: dict[str, str | None]) -> Settings | CheckResult:
    try:
        return read_settings(flags, os.environ)
    except ConfigurationError as problem:
        return CheckResult("settings", "fault", str(problem), "see `outrider config`")


def _database(settings: Settings) -> list[CheckResult]:
    url = settings.values["database"]
    if url is None:
        return [
            CheckResult("database", "fault", "none is named", "give --database or DATABASE_URL")
        ]
    try:
        tables = OutboxTables(settings.names())
        return run(database_url(url), lambda engine: check_database(engine, tables))
    except ConfigurationError as problem:
        return [CheckResult("settings", "fault", str(problem), "see `outrider config`")]
    except click.ClickException as problem:
        cure = "is it running, and are address, user and password right?"
        return [CheckResult("database", "fault", problem.message, cure)]


def _broker(settings: Settings) -> list[CheckResult]:
    if settings.values["to"] is None:
        return [
            CheckResult("broker", "warning", "none is named", "give --to, if relays run from here")
        ]
    try:
        publisher = publisher_of(settings)
    except ConfigurationError as problem:
        return [CheckResult("broker", "fault", str(problem), "see `outrider relay --help`")]
    return asyncio.run(_reach(publisher))


async def _reach(publisher: EventPublisher) -> list[CheckResult]:
    try:
        await publisher.open()
        found = await publisher.check_durability() if isinstance(publisher, DurabilityCheck) else []
    except BrokerUnavailable as error:
        return [
            CheckResult("broker", "fault", str(error), "is it running, and is the address right?")
        ]
    except ConfigurationError as error:
        cure = "change what it says; waiting will not help"
        return [CheckResult("broker", "fault", str(error), cure)]
    finally:
        await publisher.close()
    return [CheckResult("broker", "fine", f"{publisher} answers, and has what is needed"), *found]
