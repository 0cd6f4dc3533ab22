"""`outrider failed`, `parked`, `show`, `retry`, `discard`, `delete`: inspect and repair events."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

import click

from outrider.admin.filters import EventFilter
from outrider.admin.inspector import OutboxInspector
from outrider.admin.repair import OutboxRepair
from outrider.cli.database import database_option, run
from outrider.cli.filter_options import filter_options
from outrider.cli.output import json_option, print_result, table
from outrider.cli.settings_options import names_options
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from uuid import UUID

    from rich.table import Table
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.admin.summaries import FailureGroup, ParkedAggregate, RefusedAttempt
    from outrider.store.schema.names import OutboxNames


@click.command()
@database_option
@names_options
@json_option
def failed(*, database: URL, names: OutboxNames, as_json: bool) -> None:
    """Show failed events, grouped by sink, type and error; exit with 1 if there are any.

    \b
    outrider failed --database sqlite:///shop.db
    """
    tables = OutboxTables(names)

    async def query(engine: AsyncEngine) -> tuple[list[FailureGroup], int]:
        inspector = OutboxInspector(engine, tables)
        return await inspector.failures(), sum(s.retrying for s in await inspector.sinks())

    groups, retrying = run(database, query, names)
    rows = [(g.events, g.sink, g.event_type, g.error, g.first, g.last) for g in groups]
    heads = ("events", "sink", "type", "error", "first", "last")
    text = table("failed events", heads, rows) if groups else "nothing has failed."
    print_result({"failed": groups}, text, as_json=as_json)
    if retrying:
        told = f"{retrying:,} events were refused and are retried; `outrider dashboard` lists them"
        click.echo(told, err=True)
    raise SystemExit(1 if groups else 0)


@click.command()
@database_option
@names_options
@json_option
def parked(*, database: URL, names: OutboxNames, as_json: bool) -> None:
    """Show failed events that hold back their aggregates; exit with 1 if there are any.

    Only relays with --after-failure park hold aggregates back. To end it, retry the failed event:
    it is published, and then those that wait. Or discard it: those that wait are published.

    \b
    outrider parked --database sqlite:///shop.db
    """
    tables = OutboxTables(names)
    found = run(database, lambda engine: OutboxInspector(engine, tables).parked(), names)
    print_result({"parked": found}, _parked_table(found), as_json=as_json)
    raise SystemExit(1 if found else 0)


def _parked_table(found: list[ParkedAggregate]) -> Table | str:
    if not found:
        return "nothing is parked."
    heads = ("waiting", "sink", "aggregate", "failed event", "error", "what ends it")
    rows = []
    for each in found:
        failed = each.failed
        aggregate = f"{failed.aggregate_type} {failed.aggregate_id}"
        facts = (each.events, failed.sink, aggregate, failed.event_type, failed.last_error)
        rows += [
            (*facts, f"outrider retry {failed.event_id}"),
            (*[""] * len(facts), f"outrider discard {failed.event_id}"),
        ]
    return table("parked aggregates", heads, rows)


@click.command()
@click.argument("event_id", metavar="ID", type=click.UUID)
@database_option
@names_options
@click.option("--payload", is_flag=True, help="Also show the payload.")
@json_option
def show(
    *, event_id: UUID, database: URL, names: OutboxNames, payload: bool, as_json: bool
) -> None:
    """Show one event: its status and its last attempts at each sink, its neighbours, its effects.

    \b
    outrider show 0195d0a2-0000-7000-8000-000000000001
    """

    async def query(engine: AsyncEngine) -> dict[str, Any]:
        inspector = OutboxInspector(engine, OutboxTables(names))
        lines = await inspector.event(event_id)
        facts: dict[str, Any] = {"event": lines}
        if lines:
            facts["attempts"] = await inspector.attempts(event_id)
            facts["neighbours"] = await inspector.neighbours(lines[0])
            facts["caused"] = await inspector.caused_by(lines)
        if payload:
            facts["payload"] = await inspector.payload(event_id)
        return facts

    facts = run(database, query, names)
    if not facts["event"]:
        raise click.ClickException(f"there is no event {event_id}")
    if as_json:
        print_result(facts, None, as_json=True)
        return
    print_result(None, _events("event", facts["event"]), as_json=False)
    if facts["attempts"]:
        print_result(None, _attempts(facts["attempts"]), as_json=False)
    for title in ("neighbours", "caused"):
        print_result(None, _events(title, facts[title]), as_json=False)
    if payload:
        print_result(None, str(facts["payload"]), as_json=False)


def _events(title: str, lines: list[Any]) -> Table:
    heads = (
        "position",
        "event id",
        "sink",
        "type",
        "aggregate",
        "status",
        "tries",
        "recorded",
        "error",
    )
    rows = [
        (
            line.position,
            line.event_id,
            line.sink,
            line.event_type,
            f"{line.aggregate_type} {line.aggregate_id}",
            line.status,
            line.retry_count,
            line.created_at,
            line.last_error,
        )
        for line in lines
    ]
    return table(title, heads, rows)


def _attempts(attempts: list[RefusedAttempt]) -> Table:
    rows = [(each.sink, each.attempt, each.at, each.reason) for each in attempts]
    return table("refused attempts", ("sink", "attempt", "time", "reason"), rows)


def _action(verb: str, text: str, example: str) -> click.Command:
    """A command that counts events, asks for confirmation unless --yes, and changes that many.

    It says why it leaves an event or a filter out, and exits with 1 if that was named by id.
    """

    @click.command(verb, help=f"{text}\n\n\b\n{example}")
    @database_option
    @names_options
    @filter_options
    @click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    @json_option
    def command(
        *, database: URL, names: OutboxNames, wanted: list[EventFilter], yes: bool, as_json: bool
    ) -> None:
        if wanted == [EventFilter()] and not yes:
            click.echo("No filter: this means all events.", err=True)

        def repair_of(engine: AsyncEngine) -> OutboxRepair:
            return OutboxRepair(engine, OutboxTables(names), who=getpass.getuser())

        async def count(engine: AsyncEngine) -> dict[EventFilter, int]:
            return {one: await repair_of(engine).count(verb, one) for one in wanted}

        async def change(engine: AsyncEngine) -> int:
            action = getattr(repair_of(engine), verb)
            return sum([await action(one, expected=n) for one, n in counts.items() if n])

        async def explain(engine: AsyncEngine) -> list[str]:
            return [await repair_of(engine).why_none(verb, one) for one in unchanged]

        counts = run(database, count, names)
        unchanged, total = [one for one, n in counts.items() if not n], sum(counts.values())
        if total and not yes:
            click.confirm(f"{verb} {total:,} events?", abort=True, err=True)
        done = run(database, change)
        print_result({verb: done}, f"{verb}: {done:,} events.", as_json=as_json)
        for reason in run(database, explain):
            click.echo(reason, err=True)
        raise SystemExit(1 if any(one.event_id for one in unchanged) else 0)

    return command


retry = _action(
    "retry",
    "Publish failed events again, by id or by filter; their count of retries starts from 0. "
    "Named by id or with --status discarded, discarded events are published too.",
    "outrider retry 0195d0a2-0000-7000-8000-000000000001\n"
    "outrider retry --event-type 'order.*' --yes",
)
discard = _action(
    "discard",
    "Discard failed or pending events: they are not published, unless `outrider retry` brings them "
    "back; `outrider delete` removes them.",
    "outrider discard --error 'NOT_FOUND' --event-type order.placed",
)
delete = _action(
    "delete",
    "Delete published and discarded events permanently.",
    "outrider delete --until 2026-01-01T00:00Z --yes",
)
