"""`outrider status`: backlog, throughput and relays, once or repeatedly."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from rich.live import Live

from outrider.admin.inspector import OutboxInspector
from outrider.cli.database import database_option, run
from outrider.cli.output import duration_text, is_terminal, json_option, print_result, table
from outrider.cli.settings_options import names_options
from outrider.relay.backoff import sleep_unless
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.table import Table
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.admin.summaries import RelaySummary, SinkSummary
    from outrider.store.schema.names import OutboxNames

_PARKED = "Parked events wait for a person: `outrider parked` shows behind which failed event."


@click.command()
@database_option
@names_options
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    help="Seconds between two repetitions of --watch. Default: 2.",
)
@json_option
def status(*, database: URL, names: OutboxNames, watch: bool, every: float, as_json: bool) -> None:
    """Show pending, parked and failed events, events per second, and relays with their lanes.

    \b
    outrider status --database sqlite:///shop.db
    outrider status --watch
    outrider status --watch --every 10 --json     # one line each time
    """

    async def query(engine: AsyncEngine) -> tuple[list[SinkSummary], list[RelaySummary]]:
        inspector = OutboxInspector(engine, OutboxTables(names))
        return await inspector.sinks(), await inspector.relays()

    async def show(engine: AsyncEngine) -> None:
        sinks, relays = await query(engine)
        facts = [{**vars(sink), "time_to_empty": sink.time_to_empty} for sink in sinks]
        text = _overview(names.table, sinks, relays)
        print_result({"sinks": facts, "relays": relays}, text, as_json=as_json)
        if not as_json and any(sink.parked for sink in sinks):
            click.echo(_PARKED)

    async def print_repeatedly(engine: AsyncEngine) -> None:
        async for _ in _until_ctrl_c(every):
            await show(engine)

    async def redraw_repeatedly(engine: AsyncEngine) -> None:
        with Live(_overview(names.table, *await query(engine)), auto_refresh=False) as live:
            async for _ in _until_ctrl_c(every):
                live.update(_overview(names.table, *await query(engine)), refresh=True)

    repeat = redraw_repeatedly if is_terminal() and not as_json else print_repeatedly
    run(database, repeat if watch else show, names)


async def _until_ctrl_c(every: float) -> AsyncIterator[None]:
    """Ends by an event, not by cancellation: a query in progress may swallow a cancellation."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, ending.set)
    while not ending.is_set():
        yield
        await sleep_unless(ending, timedelta(seconds=every))


def _overview(title: str, sinks: list[SinkSummary], relays: list[RelaySummary]) -> Table:
    heads = (
        *("sink", "pending", "retrying", "failed", "parked", "oldest", "per second"),
        *("empty in", "relays"),
    )
    rows = [
        (
            sink.sink,
            f"~{sink.pending:,}" if sink.estimated else sink.pending,
            f"{sink.retrying:,}{more}",
            f"{sink.failed:,}{more}",
            f"{sink.parked:,}{more}",
            sink.oldest,
            sink.rate,
            duration_text(sink.time_to_empty) if sink.pending else "-",
            _live_relays([relay for relay in relays if relay.sink == sink.sink]),
        )
        for sink in sinks
        for more in ["+" * sink.at_least]
    ]
    return table(title, heads, rows)


def _live_relays(relays: list[RelaySummary]) -> str:
    alive = [f"{relay.name} ({relay.lanes} lanes)" for relay in relays if relay.alive]
    return ", ".join(alive) or "none"
