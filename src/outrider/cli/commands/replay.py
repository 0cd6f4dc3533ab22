"""`outrider replay`: publish events again; an interrupted replay can be resumed."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.progress import Progress

from outrider.admin.inspector import OutboxInspector
from outrider.admin.repair import OutboxRepair
from outrider.admin.replay import Replay
from outrider.cli.database import Interrupted, database_option, run
from outrider.cli.filter_options import filter_options
from outrider.cli.output import json_option, print_result, table
from outrider.cli.settings_options import names_options
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.admin.filters import EventFilter
    from outrider.store.schema.names import OutboxNames


@click.command()
@database_option
@names_options
@filter_options
@click.option(
    "--to", metavar="SINK", help="Publish to this sink instead of the sink of each event."
)
@click.option("--rate", type=click.FloatRange(min=0.1), help="At most this many events per second.")
@click.option(
    "--resume",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Resume the replay with this number.",
)
@click.option("--list", "listed", is_flag=True, help="List earlier replays and exit.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def replay(
    *,
    database: URL,
    names: OutboxNames,
    wanted: list[EventFilter],
    to: str | None,
    rate: float | None,
    resume: int | None,
    listed: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Publish events again, marked as replayed, in order per aggregate.

    This command puts them into the outbox; relays publish them. If it is interrupted (exit code
    130), it prints how to resume; resuming repeats no event.

    \b
    outrider replay --since 2026-01-31T12:00Z --event-type 'order.*' --rate 500
    outrider replay --aggregate-id 4711 --to archive
    outrider replay --list
    outrider replay --resume 12
    """
    if listed:
        _list(database, OutboxTables(names), as_json=as_json)
        return
    if len(wanted) > 1:
        raise click.UsageError("replay takes one id; for more, give a filter, or do it id by id")
    if resume and (to or wanted[0].texts()):
        raise click.UsageError("--resume goes on with what was chosen then: no filter, no --to")

    def replay_of(engine: AsyncEngine) -> Replay:
        return Replay(engine, OutboxTables(names), who=getpass.getuser(), rate=rate)

    total = None
    if resume is None:
        total = run(database, lambda engine: replay_of(engine).count(wanted[0], to=to), names)
        if not total:
            _explain_none(database, OutboxTables(names), wanted[0], as_json=as_json)
        elif not yes:
            click.confirm(f"replay {total:,} events?", abort=True, err=True)
        resume = run(database, lambda engine: replay_of(engine).begin(wanted[0], to=to))
    number, resume_command = resume, f"outrider replay --resume {resume}"
    click.echo(f"replay {number}; if interrupted: {resume_command}", err=True)

    async def proceed(engine: AsyncEngine) -> int:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("replaying", total=total)
            return await replay_of(engine).run(
                number, lambda done: progress.update(task, completed=done)
            )

    try:
        done = run(database, proceed, names)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; resume with: {resume_command}") from None
    print_result({"replay": number, "events": done}, f"replay: {done:,} events.", as_json=as_json)


def _explain_none(
    database: URL, tables: OutboxTables, wanted: EventFilter, *, as_json: bool
) -> NoReturn:
    why = run(database, lambda engine: OutboxRepair(engine, tables).why_none("replay", wanted))
    print_result({"replay": None, "events": 0}, "replay: 0 events.", as_json=as_json)
    click.echo(why, err=True)
    raise SystemExit(1 if wanted.event_id else 0)


def _list(database: URL, tables: OutboxTables, *, as_json: bool) -> None:
    async def query(engine: AsyncEngine) -> list[dict[str, Any]]:
        rows = await OutboxInspector(engine, tables).actions(action="replay")
        return [{**row._mapping, "filter": json.loads(row.filter)} for row in rows]

    found = run(database, query, tables.names)
    heads = ("id", "at", "who", "filter", "events", "finished_at")
    rows = [[each[head] for head in heads] for each in found]
    titles = ("number", "begun", "who", "filter", "events", "finished")
    text = table("replays", titles, rows) if found else "no replays yet."
    print_result({"replays": found}, text, as_json=as_json)
