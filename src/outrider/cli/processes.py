"""Relays and consumers as processes: what an application names, signals, several at once."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import signal
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from outrider.cli.health import HealthServer, tell_systemd
from outrider.errors import ConfigurationError
from outrider.lifecycle import BackgroundService
from outrider.observability.logging import EventFormatter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from types import ModuleType

    from outrider.cli.health import Numbers

_NUMBER: Final = "OUTRIDER_PROCESS"


def serving_options(command: Callable[..., None]) -> Callable[..., None]:
    options = (
        click.option(
            "--processes", type=click.IntRange(1, 64), default=1, help="How many processes."
        ),
        click.option(
            "--health",
            metavar="HOST:PORT",
            envvar="OUTRIDER_HEALTH",
            help="Answer /livez, /readyz and /metrics there; further processes on the next ports.",
        ),
        click.option("--quiet", is_flag=True, help="Log warnings only."),
        click.option(
            "--audit",
            is_flag=True,
            envvar="OUTRIDER_AUDIT",
            help="Log a line for every event that is published or handled.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def serve(
    make: Callable[[], Coroutine[Any, Any, None]], *, processes: int, quiet: bool, audit: bool
) -> None:
    """Run in this process, or in several like it, and turn wrong settings into one line."""
    log = logging.StreamHandler()
    log.setFormatter(EventFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[log])
    logging.getLogger("outrider.audit").setLevel(logging.INFO if audit else logging.WARNING)
    if processes > 1:
        sys.exit(_run_several(processes))
    try:
        _run_loop(make())
    except ConfigurationError as problem:
        raise click.ClickException(str(problem)) from None


async def run_until_signal(
    parts: Sequence[BackgroundService], health: str | None = None, numbers: Numbers | None = None
) -> None:
    """All of them side by side; the first signal stops them in good order, the second at once."""
    loop, stops = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def stop() -> None:
        if stops:
            os._exit(1)
        tell_systemd("STOPPING=1")
        stops.update(loop.create_task(part.stop()) for part in parts)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        async with AsyncExitStack() as stack:
            if health is not None:
                server = HealthServer(_own_port(health), parts, numbers)
                await stack.enter_async_context(server.serving())
            async with asyncio.TaskGroup() as tasks:
                ready = loop.create_task(_say_ready(parts))
                stack.callback(ready.cancel)
                for part in parts:
                    tasks.create_task(part.run())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _say_ready(parts: Sequence[BackgroundService]) -> None:
    while any(part.problem for part in parts):  # noqa: ASYNC110 - parts tell nobody
        await asyncio.sleep(0.1)
    tell_systemd("READY=1")


def _own_port(health: str) -> str:
    """Several processes share one setting, and each takes the port after the one before."""
    host, _, port = health.rpartition(":")
    number = int(os.environ.get(_NUMBER, "0"))
    return f"{host}:{int(port) + number}" if number and port.isdigit() else health


def named(name: str) -> Any:
    """What `module:attribute` stands for; the current folder is looked into first."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(f"{name!r}: write it as module:name")
    found: Any = named_module(module)
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ConfigurationError(f"{name!r}: {module} has no {attribute}") from None
    return found


def named_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"{name!r} is no name of a module; write it as package.module")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
            raise
        raise ConfigurationError(f"{name!r}: there is no module {missing.name}") from None


@asynccontextmanager
async def parts_of(
    name: str, kind: type[BackgroundService]
) -> AsyncIterator[list[BackgroundService]]:
    """The relays or consumers that an application names, or a function makes.

    A function that is an async context manager closes at the end what they lived from.
    """
    found = named(name)
    async with AsyncExitStack() as stack:
        if callable(found) and not isinstance(found, BackgroundService):
            found = found()
            if inspect.isawaitable(found):
                found = await found
            elif not isinstance(found, BackgroundService) and isinstance(
                found, AbstractAsyncContextManager
            ):
                found = await stack.enter_async_context(found)
        parts = [found] if isinstance(found, BackgroundService) else list(found)
        for part in parts:
            if not isinstance(part, kind):
                problem = f"{name} gives a {type(part).__name__}, not a {kind.__name__}"
                raise ConfigurationError(problem)
        yield parts


def _run_loop(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


def _run_several(processes: int) -> int:
    """The same command as several processes; they share the work among themselves."""
    command = [sys.executable, "-m", "outrider", *_without_processes(sys.argv[1:])]
    children = [
        subprocess.Popen(command, env={**os.environ, _NUMBER: str(number)})
        for number in range(processes)
    ]

    def pass_on(number: int, _frame: object) -> None:
        for child in children:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    # A terminal sends Ctrl-C to the children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return max(child.wait() for child in children)


def _without_processes(arguments: list[str]) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if skip or argument == "--processes":
            skip = not skip
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept
