"""`outrider status`: what waits, how fast it goes and who works; once, or again and again."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from rich.live import Live

from outrider.admin.inspector import OutboxInspector
from outrider.cli.database import database_option, names_options, run
from outrider.cli.output import age, is_terminal, json_option, say, table
from outrider.relay.backoff import sleep_unless
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.table import Table
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outrider.admin.summaries import RelaySummary, SinkSummary
    from outrider.store.schema.names import OutboxNames


@click.command()
@database_option
@names_options
@click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option("--every", type=click.FloatRange(min=0.1), default=2.0, help="Seconds between.")
@json_option
def status(*, database: URL, names: OutboxNames, watch: bool, every: float, as_json: bool) -> None:
    """Show what waits, what failed, how fast it goes, and relays with the number of their lanes.

    \b
    outrider status --database sqlite:///shop.db
    outrider status --watch
    outrider status --watch --every 10 --json     # a line each time
    """

    async def look(engine: AsyncEngine) -> tuple[list[SinkSummary], list[RelaySummary]]:
        inspector = OutboxInspector(engine, OutboxTables(names))
        return await inspector.sinks(), await inspector.relays()

    async def show(engine: AsyncEngine) -> None:
        sinks, relays = await look(engine)
        facts = [{**vars(state), "time_to_empty": state.time_to_empty} for state in sinks]
        say({"sinks": facts, "relays": relays}, _overview(sinks, relays), as_json=as_json)

    async def keep_showing(engine: AsyncEngine) -> None:
        async for _ in _until_ctrl_c(every):
            await show(engine)

    async def keep_drawing(engine: AsyncEngine) -> None:
        with Live(_overview(*await look(engine)), auto_refresh=False) as live:
            async for _ in _until_ctrl_c(every):
                live.update(_overview(*await look(engine)), refresh=True)

    keep = keep_drawing if is_terminal() and not as_json else keep_showing
    run(database, keep if watch else show)


async def _until_ctrl_c(every: float) -> AsyncIterator[None]:
    """Not by cancelling, which a query that is just being answered may swallow."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, ending.set)
    while not ending.is_set():
        yield
        await sleep_unless(ending, timedelta(seconds=every))


def _overview(sinks: list[SinkSummary], relays: list[RelaySummary]) -> Table:
    heads = ("sink", "pending", "retrying", "failed", "oldest", "per second", "empty in", "relays")
    rows = [
        (
            state.sink,
            f"~{state.pending:,}" if state.estimated else state.pending,
            f"{state.retrying:,}{more}",
            f"{state.failed:,}{more}",
            state.oldest,
            state.rate,
            age(state.time_to_empty) if state.pending else "-",
            _workers([relay for relay in relays if relay.sink == state.sink]),
        )
        for state in sinks
        for more in ["+" * state.at_least]
    ]
    return table("outbox", heads, rows)


def _workers(relays: list[RelaySummary]) -> str:
    alive = [f"{relay.name} ({relay.lanes} lanes)" for relay in relays if relay.alive]
    return ", ".join(alive) or "none"
