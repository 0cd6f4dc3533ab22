"""The command `outrider` with all its subcommands; new ones are added here."""

from __future__ import annotations

import click

from outrider.cli.commands.catalog import catalog
from outrider.cli.commands.completion import completion
from outrider.cli.commands.dashboard import dashboard
from outrider.cli.commands.demo import demo
from outrider.cli.commands.doctor import doctor
from outrider.cli.commands.operations import delete, discard, failed, parked, retry, show
from outrider.cli.commands.relay import config, consume, relay
from outrider.cli.commands.replay import replay
from outrider.cli.commands.schema import schema
from outrider.cli.commands.status import status
from outrider.cli.database import Interrupted


class _Commands(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Bytes that are no text arrive as surrogates, which no database and no terminal accepts.
        if any("\ud800" <= character <= "\udfff" for text in args for character in text):
            raise click.UsageError("an argument is no valid Unicode text", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click itself would say "Aborted!" and exit with 1
            raise SystemExit(Interrupted.exit_code) from None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="outrider")
def app() -> None:
    """The transactional outbox for Python.

    Exit codes: 0 fine, 1 a problem was found, 2 wrong usage, 3 the database cannot be reached,
    130 interrupted.

    \b
    outrider demo
    outrider schema apply --database postgresql://app@localhost/shop
    outrider relay --database postgresql://app@localhost/shop --to amqp://localhost
    outrider status --watch
    eval "$(outrider completion bash)"
    """


for command in (
    *(schema, relay, consume, config, doctor, catalog, dashboard, demo, completion),
    *(status, failed, parked, show, retry, discard, delete, replay),
):
    app.add_command(command)
