"""`outrider completion`: the script for completion in a shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_SHELLS: Final[dict[str, type[ShellComplete]]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in your shell.

    \b
    eval "$(outrider completion bash)"      # ~/.bashrc
    eval "$(outrider completion zsh)"       # ~/.zshrc
    outrider completion fish | source       # ~/.config/fish/config.fish
    """
    app = context.find_root().command
    click.echo(_SHELLS[shell](app, {}, "outrider", "_OUTRIDER_COMPLETE").source())
