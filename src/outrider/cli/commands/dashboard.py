"""`outrider dashboard`: the dashboard as a server, local unless a password is set."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import click

from outrider.cli.database import ProblemFound, database_option, run
from outrider.cli.settings_options import names_options
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine
    from starlette.types import ASGIApp

    from outrider.store.schema.names import OutboxNames


@click.command()
@database_option
@names_options
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="The port to listen on.",
)
@click.option(
    "--password",
    envvar="OUTRIDER_DASHBOARD_PASSWORD",
    show_envvar=True,
    help="Ask visitors for this password. Other users can see flags, so prefer the environment.",
)
@click.option("--read-only", is_flag=True, help="Offer no actions such as retry and discard.")
@click.option("--show-payload", is_flag=True, help="Show payloads, with secret fields redacted.")
def dashboard(
    *,
    database: URL,
    names: OutboxNames,
    host: str,
    port: int,
    password: str | None,
    read_only: bool,
    show_payload: bool,
) -> None:
    """Show the outbox in a browser: pending and failed events, and the history of each event.

    \b
    outrider dashboard --database sqlite:///shop.db
    OUTRIDER_DASHBOARD_PASSWORD=… outrider dashboard --host 0.0.0.0 --read-only
    """
    try:
        import uvicorn

        from outrider.dashboard.guard import is_loopback
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        hint = f"{library} is missing: pip install 'outrider[dashboard]'"
        raise click.UsageError(hint) from None
    if not is_loopback(host) and not password:
        raise click.UsageError(f"--host {host} lets others in: set a password, or leave it out")

    listener = _listen(host, port)

    async def serve(engine: AsyncEngine) -> None:
        app = dashboard_app(engine, names, password, read_only=read_only, show_payload=show_payload)
        # Ignores X-Forwarded-*: access is decided by the peer address.
        config = uvicorn.Config(app, log_level="warning", proxy_headers=False, ws="none")
        address = f"[{host}]" if ":" in host else host
        click.echo(f"http://{address}:{listener.getsockname()[1]}/  (Ctrl-C ends it)")
        await uvicorn.Server(config).serve([listener])

    with listener:
        run(database, serve, names)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = (error.strerror or type(error).__name__).partition(" (")[0]
        raise ProblemFound(f"--host {host} --port {port}: {why}; choose another") from None


def dashboard_app(
    engine: AsyncEngine,
    names: OutboxNames,
    password: str | None,
    *,
    read_only: bool,
    show_payload: bool,
) -> ASGIApp:
    """With a password, everybody who has it may do everything; without, only this machine may."""
    from outrider.dashboard import dashboard as make_dashboard
    from outrider.dashboard.password import PasswordGate

    app = make_dashboard(
        engine,
        tables=OutboxTables(names),
        authorize=(lambda _request, _action: True) if password else None,
        read_only=read_only,
        show_payload=show_payload,
    )
    return PasswordGate(app, password) if password else app
