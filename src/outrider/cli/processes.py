"""Relays and consumers as processes: loading them, signals, several processes."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from outrider.cli.health import HealthServer, notify_systemd
from outrider.errors import ConfigurationError
from outrider.lifecycle import BackgroundService
from outrider.observability.logging import EventFormatter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from types import ModuleType

    from outrider.cli.health import RenderMetrics
    from outrider.settings.process import ProcessConfig

_CHILD_NUMBER: Final = "OUTRIDER_CHILD_NUMBER"
"""The environment variable that numbers child processes from 0."""
_READY_CHECK_INTERVAL_S: Final = 0.1
_CLOSE_TIMEOUT_S: Final = 2.0


def serve(make: Callable[[], Coroutine[Any, Any, None]], process: ProcessConfig) -> None:
    """Run the work in this process or in several; a configuration error becomes one line."""
    log = logging.StreamHandler()
    log.setFormatter(EventFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING if process.quiet else logging.INFO, handlers=[log])
    if not process.audit:
        logging.getLogger("outrider.audit").setLevel(logging.WARNING)
    if process.processes > 1 and not is_child_process():
        sys.exit(_run_children(process.processes))
    try:
        _run_event_loop(make())
    except ConfigurationError as problem:
        raise click.ClickException(str(problem)) from None


async def run_until_signal(
    services: Sequence[BackgroundService],
    health: str | None = None,
    metrics: RenderMetrics | None = None,
) -> None:
    """Run all services. The first signal stops them gracefully, the second ends the process."""
    loop, stops = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def stop() -> None:
        if stops:
            os._exit(1)
        notify_systemd("STOPPING=1")
        stops.update(loop.create_task(_stop(service)) for service in services)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        async with AsyncExitStack() as stack:
            if health is not None:
                server = HealthServer(_own_address(health), services, metrics)
                await stack.enter_async_context(server.serving())
            async with asyncio.TaskGroup() as tasks:
                notifying = loop.create_task(_notify_systemd(services))
                stack.callback(notifying.cancel)
                for service in services:
                    tasks.create_task(service.run())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _stop(service: BackgroundService) -> None:
    with suppress(Exception):  # `run` raises it too
        await service.stop()


async def _notify_systemd(services: Sequence[BackgroundService]) -> None:
    # Services have no event for readiness, so they are asked again and again.
    while any(service.problem_besides_broker for service in services):  # noqa: ASYNC110
        await asyncio.sleep(_READY_CHECK_INTERVAL_S)
    notify_systemd("READY=1")
    watchdog_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
    while watchdog_s:  # a blocked event loop sends nothing, so systemd restarts the process
        notify_systemd("WATCHDOG=1")
        await asyncio.sleep(watchdog_s / 3)


def is_child_process() -> bool:
    """Whether this is one of several processes that a parent process started."""
    return _CHILD_NUMBER in os.environ


def _own_address(health: str) -> str:
    """The health address of this process: each child process takes the next port."""
    host, _, port = health.rpartition(":")
    number = int(os.environ.get(_CHILD_NUMBER, "0"))
    return f"{host}:{int(port) + number}" if number and port.isdigit() else health


def load_object(name: str) -> Any:
    """Imports what `module:name` stands for; the current folder is searched first."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(f"{name!r}: write it as module:name")
    found: Any = load_module(module)
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ConfigurationError(f"{name!r}: {module} has no {attribute}") from None
    return found


def load_module(name: str) -> ModuleType:
    """Imports a module by its dotted name; the current folder is searched first."""
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
async def load_services(
    name: str, kind: type[BackgroundService]
) -> AsyncIterator[list[BackgroundService]]:
    """The relays or consumers that `module:name` is, lists, or returns when it is called.

    A function may be an async context manager; it is left when the services have ended.
    """
    found = load_object(name)
    async with AsyncExitStack() as stack:
        if _makes_services(found):
            found = found()
            if inspect.isawaitable(found):
                found = await found
            elif not isinstance(found, BackgroundService) and isinstance(
                found, AbstractAsyncContextManager
            ):
                found = await stack.enter_async_context(found)
        services = list(found) if isinstance(found, Iterable) else [found]
        for service in services:
            if not isinstance(service, kind):
                raise ConfigurationError(
                    f"{name} gives a {type(service).__name__}, not an {kind.__name__}; name an "
                    f"{kind.__name__}, a list of them, or a function without arguments that makes "
                    "them"
                )
        yield services


def _makes_services(found: object) -> bool:
    """Whether it can be called without arguments; an ASGI application, for one, cannot."""
    if isinstance(found, BackgroundService) or not callable(found):
        return False
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        return False
    return True


def _run_event_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end; tasks and threads that ignore it do not keep the process from ending."""
    new_event_loop = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        new_event_loop = uvloop.new_event_loop
    code, closing = 1, threading.Timer(_CLOSE_TIMEOUT_S, lambda: _exit_stuck(code))
    closing.daemon = True
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            try:
                runner.run(work)
                code = 0
            finally:
                closing.start()
    finally:
        closing.cancel()


def _exit_stuck(code: int) -> None:
    problem = f"a task or a thread has not ended within {_CLOSE_TIMEOUT_S:g} s, and is given up"
    click.echo(f"warning: {problem}", err=True)
    os._exit(code)


def _run_children(processes: int) -> int:
    """Run the same command in several child processes; returns the highest exit code.

    If one ends unasked, the others are stopped: a supervisor sees this process only.
    """
    command = [sys.executable, "-m", "outrider", *sys.argv[1:]]
    children = [
        subprocess.Popen(command, env={**os.environ, _CHILD_NUMBER: str(number)})
        for number in range(processes)
    ]

    is_asked = threading.Event()

    def stop(number: int, _frame: object) -> None:
        is_asked.set()
        if number == signal.SIGTERM:  # a terminal sends Ctrl-C to the children itself
            for child in children:
                child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with ThreadPoolExecutor(processes) as threads:
        for ended in as_completed(threads.submit(child.wait) for child in children):
            if not is_asked.is_set():
                problem = f"one of {processes} processes has ended with code {ended.result()}"
                click.echo(f"warning: {problem}; the others are stopped", err=True)
                stop(signal.SIGTERM, None)
    # A child that a signal has killed has a negative code.
    return max(code if code >= 0 else 128 - code for code in (child.wait() for child in children))
