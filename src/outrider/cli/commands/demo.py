"""`outrider demo`: a running example on this machine that needs no other service."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outrider.demo.story import Summary, perform
from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    import uvicorn

    from outrider.demo.stage import Demo

_HOST = "127.0.0.1"


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    help="If this port is busy, the demo takes another one. Default: 8000.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=5), help="End after this time, with a summary."
)
@click.option("--postgres", is_flag=True, help="Use a private PostgreSQL instead of SQLite.")
@click.option(
    "--rabbitmq", is_flag=True, help="Use a private RabbitMQ instead of a broker in memory."
)
def demo(*, port: int, seconds: float | None, postgres: bool, rabbitmq: bool) -> None:
    """Run a messaging service, with a page that shows events and has buttons to break things.

    \b
    outrider demo
    outrider demo --seconds 20
    outrider demo --postgres --rabbitmq
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kinds = [kind for kind, on in (("postgres", postgres), ("rabbitmq", rabbitmq)) if on]
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(port))
        try:
            made, server = _make(stack, listener.getsockname()[1], kinds)
        except ModuleNotFoundError as missing:
            hint = f"{missing.name or missing} is missing: pip install 'outrider[demo]'"
            raise click.UsageError(hint) from None
        except ConfigurationError as problem:
            raise click.UsageError(str(problem)) from None
        summary = None
        with suppress(KeyboardInterrupt):  # by then everything has stopped gracefully
            summary = asyncio.run(_serve(made, server, listener, seconds))
    click.echo(summary or "  The demo has ended.")
    if seconds is not None and not (summary and summary.is_fine):
        raise SystemExit(1)


def _listen(port: int) -> socket.socket:
    """Listen on this port, or on another one if it is busy."""
    with suppress(OSError):
        return socket.create_server((_HOST, port))
    click.echo(f"  Port {port} is busy; another one is taken.")
    return socket.create_server((_HOST, 0))


def _make(stack: ExitStack, port: int, kinds: list[str]) -> tuple[Demo, uvicorn.Server]:
    import uvicorn

    from outrider.demo.app import demo_app
    from outrider.demo.broker import LocalBroker
    from outrider.demo.servers import RabbitBroker, private_servers
    from outrider.demo.stage import Demo

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    if kinds:
        click.echo(f"  Starting {' and '.join(kinds)} …")
    servers = stack.enter_context(private_servers(kinds))
    database = servers["postgres"].url if "postgres" in servers else f"sqlite:///{folder}/demo.db"
    broker = RabbitBroker(servers["rabbitmq"]) if "rabbitmq" in servers else LocalBroker(port)
    made = Demo(database=database, broker=broker, port=port, folder=folder)
    config = uvicorn.Config(demo_app(made), log_level="error", timeout_graceful_shutdown=2)
    return made, uvicorn.Server(config)


async def _serve(
    made: Demo, server: uvicorn.Server, listener: socket.socket, seconds: float | None
) -> Summary | None:
    """Serve until Ctrl-C, or for the given seconds with a summary at the end."""
    serving = asyncio.create_task(server.serve([listener]))
    while not (server.started or serving.done()):  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.05)
    if not server.started:
        raise click.ClickException("the demo could not start; the reason stands above")
    port = listener.getsockname()[1]
    click.echo(f"\n  Outrider demo: http://{_HOST}:{port}    (Ctrl-C ends it)\n")
    if seconds is None:
        await serving
        return None
    telling = asyncio.create_task(perform(made, seconds))
    await asyncio.wait({serving, telling}, return_when=asyncio.FIRST_COMPLETED)
    await made.stream.stop()
    server.should_exit = True
    await serving
    return await telling
