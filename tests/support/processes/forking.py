"""Forks processes from a template that has imported everything, so that they start fast."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import aiokafka  # noqa: F401 - these are imported here once, and in no fork again
import alembic.command  # noqa: F401
import dateutil.rrule  # noqa: F401
import fastapi  # noqa: F401
import nats  # noqa: F401
import psutil
import redis.asyncio  # noqa: F401
import sqlalchemy.ext.asyncio  # noqa: F401
import uvicorn  # noqa: F401
import uvloop  # noqa: F401

import outrider.cli.app
import outrider.integrations.dishka
import outrider.integrations.fastapi  # noqa: F401
from tests.support.processes import effects_app, relay_app  # noqa: F401

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.processes.forking", "pytest"])


class Child:
    """A forked process with the methods of subprocess.Popen; its output is appended to a log."""

    def __init__(
        self, work: Callable[..., Any], *arguments: Any, environment: Mapping[str, str], log: Path
    ) -> None:
        what = (work, arguments, dict(environment), log)
        self._process = _context.Process(target=_run, args=what, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, patience: float | None = None) -> int:
        self._process.join(patience)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", patience or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send only to a child of the template: the pid may belong to another process by now."""
        try:
            victim = psutil.Process(self.pid)
            is_ours = victim.ppid() == forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        except psutil.NoSuchProcess:
            return
        if is_ours:
            victim.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def run_module(name: str, *arguments: str) -> None:
    """Run a module, as `python -m` does."""
    sys.argv[1:] = arguments
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run(
    work: Callable[..., Any], arguments: tuple[Any, ...], environment: dict[str, str], log: Path
) -> None:
    ctypes.CDLL(None).prctl(
        _DIE_WITH_PARENT, signal.SIGKILL
    )  # the kernel kills it when the parent dies
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(written, sys.stdout.fileno())
    os.dup2(written, sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    warnings.simplefilter("error")
    work(*arguments)
