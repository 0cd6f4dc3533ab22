"""`outrider demo`: see events travel on this machine, without any service, and break things."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from outrider.demo.app import Demo

_HOST = "127.0.0.1"


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8000, help="If it is busy, another.")
@click.option("--seconds", type=click.FloatRange(min=5), help="End by itself, with a summary.")
def demo(*, port: int, seconds: float | None) -> None:
    """Run a small shop with a page to watch and buttons that break things.

    \b
    outrider demo
    outrider demo --seconds 20
    """
    try:
        import uvicorn

        from outrider.demo.app import Demo, demo_app
    except ModuleNotFoundError as missing:
        raise click.UsageError(f"{missing.name} is missing: pip install 'outrider[demo]'") from None
    chosen = _free(port)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Demo(f"sqlite:///{folder}/shop.db", chosen)
        config = uvicorn.Config(
            demo_app(made), host=_HOST, port=chosen, log_level="error", timeout_graceful_shutdown=2
        )
        click.echo(f"\n  Outrider demo: http://{_HOST}:{chosen}    (Ctrl-C ends it)\n")
        ended = asyncio.run(_serve(uvicorn.Server(config), made, seconds))
    if seconds is not None:
        raise SystemExit(_summary(ended))


def _free(port: int) -> int:
    """The port, or another one if somebody has it."""
    for candidate in (port, 0):
        with suppress(OSError), socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((_HOST, candidate))
            return int(found.getsockname()[1])
    raise click.ClickException("no port is free")


async def _serve(server: Any, made: Demo, seconds: float | None) -> dict[str, Any]:
    serving = asyncio.create_task(server.serve())
    state: dict[str, Any] = {}
    if seconds is not None:
        state = await _perform(server, made, seconds)
        server.should_exit = True
    await serving
    return state


async def _perform(server: Any, made: Demo, seconds: float) -> dict[str, Any]:
    """The story by itself: flow, an outage, a crash, and the end of both."""
    while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
        await asyncio.sleep(0.05)
    share = seconds / 5
    for action in ("order", "break", "repair", "crash"):
        await made.act(action)
        await asyncio.sleep(share)
    return await _settled(made, share)


async def _settled(made: Demo, patience: float) -> dict[str, Any]:
    """What is left when nothing waits any more, or when patience has ended."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(patience, 15)):
            # Customers never rest, so a few events are always on their way.
            while made.duplicates == 0 or (await made.state())["counts"]["pending"] > 2:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    return await made.state()


def _summary(state: dict[str, Any]) -> int:
    counts = state["counts"]
    fine = counts["published"] > 0 and counts["failed"] == 0 and counts["pending"] <= 2
    fine = fine and state["relay"]["starts"] > 1
    click.echo(
        f"  {counts['published']} events published, {counts['pending']} pending, "
        f"{counts['failed']} failed; {state['handled']} invoices, "
        f"{state['duplicates']} duplicates skipped; the relay was started "
        f"{state['relay']['starts']} times. {'All is well.' if fine else 'Something is wrong.'}"
    )
    return 0 if fine else 1
