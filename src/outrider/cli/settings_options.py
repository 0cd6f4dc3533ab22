"""Settings as options of commands, derived from the config dataclasses."""

from __future__ import annotations

import os
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outrider.cli.processes import is_child_process
from outrider.errors import ConfigurationError
from outrider.settings.fields import CONFIGS, PREFIX, Setting, all_settings, settings_of
from outrider.settings.masking import mask_url
from outrider.settings.process import ProcessConfig
from outrider.settings.settings import Settings, read_config, read_settings
from outrider.settings.unknown_variables import unknown_variables
from outrider.store.schema.names import OutboxNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

R = TypeVar("R")


def settings_options(command: Callable[..., R]) -> Callable[..., R]:
    """Every setting of a relay process as a flag, each passed on as text."""
    return _options(command, *CONFIGS)


def process_options(command: Callable[..., R]) -> Callable[..., R]:
    """--processes, --health and the others that every long-running process has."""
    return _with_config(command, ProcessConfig, "process")


def names_options(command: Callable[..., R]) -> Callable[..., R]:
    """--table, --schema and the others that name tables, passed on as one OutboxNames."""
    return _with_config(command, OutboxNames, "names")


def settings_or_usage_error(flags: dict[str, str | None]) -> Settings:
    """The settings of a relay process; all that is wrong with them is one usage error."""
    try:
        return read_settings(flags, os.environ)
    except ConfigurationError as problem:
        raise click.UsageError(str(problem)) from None


def warn_of_unknown_variables() -> None:
    """One line on stderr for each misspelt setting in the environment."""
    if not is_child_process():  # the parent process has warned already
        for sentence in unknown_variables(os.environ):
            click.echo(f"warning: {sentence}", err=True)


def refuse_settings_beside_app(app: str, flags: dict[str, str | None]) -> None:
    """APP makes its own relay or consumer: a flag is a usage error, a variable a warning."""
    process = settings_of(ProcessConfig)
    others = [each for each in all_settings() if each.name not in {own.name for own in process}]
    cure = f"{mask_url(app)} makes its own relay or consumer: set it there, in Python"
    if given := [each.flag for each in others if flags.get(each.name) is not None]:
        raise click.UsageError(f"{', '.join(given)}: no effect, since {cure}")
    variables = [name for each in others for name in each.environment if os.environ.get(name)]
    own = [name for name in variables if name.startswith(PREFIX)]
    if own and not is_child_process():  # the parent process has warned already
        how = f"{cure}, or read it there with outrider.read_settings"
        click.echo(f"warning: {', '.join(own)}: no effect by itself, since {how}", err=True)


def _with_config(
    command: Callable[..., R], config: type[DataclassInstance], parameter: str
) -> Callable[..., R]:
    names = [setting.name for setting in settings_of(config)]

    @wraps(command)
    def with_config(**given: Any) -> R:
        flags = {name: given.pop(name) for name in names}
        try:
            made = read_config(config, flags, os.environ)
        except ConfigurationError as problem:
            raise click.UsageError(str(problem)) from None
        return command(**{parameter: made}, **given)

    return _options(with_config, config)


def _options(command: Callable[..., R], *configs: type[DataclassInstance]) -> Callable[..., R]:
    settings = [setting for config in configs for setting in settings_of(config)]
    for setting in reversed(settings):
        command = _option(setting)(command)
    return command


def _option(setting: Setting) -> Callable[[Callable[..., R]], Callable[..., R]]:
    facts = ", ".join(setting.environment)
    facts += f"; default: {setting.default}" if setting.default is not None else ""
    text = f"{setting.help} [{facts}]".strip()
    if setting.is_switch:
        return click.option(
            "/".join(setting.flags),
            setting.name,
            default=None,
            help=text,
            callback=lambda _context, _option, on: None if on is None else setting.kind.show(on),
        )
    return click.option(setting.flag, setting.name, metavar=setting.value_name, help=text)
