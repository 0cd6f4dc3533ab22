"""Commands of `outrider` forked from a process that has imported everything: at work at once."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from multiprocessing import forkserver
from pathlib import Path

import aiokafka  # noqa: F401 - imported here once, and in no fork again
import nats  # noqa: F401
import psutil
import redis  # noqa: F401
import uvloop  # noqa: F401

from outrider.cli.app import app
from tests.faults import effects_app, relay_app  # noqa: F401
from tests.faults.relay_process import RelayProcess

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.faults.forked", "pytest"])


class Child:
    """A forked process with the methods of a started one."""

    def __init__(self, command: tuple[str, ...], settings: dict[str, str], log: Path) -> None:
        self._process = _context.Process(target=_run, args=(command, settings, log), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Only to a child of our own template: a pid alone may be somebody else's by now."""
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


class ForkedRelay(RelayProcess):
    """As its parent, in a tenth of the time."""

    def _start(self) -> Child:  # type: ignore[override]
        with self.log.open("ab") as log:
            self._began = log.tell()
        return Child(self._command, self._environment(), self.log)

    @property
    def is_stopped(self) -> bool:
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False


def _run(command: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # nobody else would end it
    written = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(written, sys.stdout.fileno())
    os.dup2(written, sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    warnings.simplefilter("error")
    app(args=list(command), prog_name="outrider")
