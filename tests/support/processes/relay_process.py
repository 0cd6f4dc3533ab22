"""A relay or consumer in its own process, which tests kill, stop and resume."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_OURS = ("OUTBOX_", "DATABASE_URL", "RABBITMQ_", "FAULT_")
RELAY = ("relay",)


class RelayProcess:
    """A running `outrider relay`; signals reach only this process."""

    def __init__(
        self, settings: Mapping[str, str], log: Path, command: tuple[str, ...] = RELAY
    ) -> None:
        self._settings, self.log, self._command = settings, log, command
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self._began = log.tell()
            return subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "outrider", *self._command],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _environment(self) -> dict[str, str]:
        others = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
        return {**others, **self._settings}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        """The relay's name in the database."""
        return f"{socket.gethostname()}:{self.pid}"

    @property
    def text(self) -> str:
        """All its output, also from before a restart."""
        return self.log.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        assert self.is_alive, f"{self.log.name}: it ended with {self.exit_code}"
        return b" started: " in self.log.read_bytes()[self._began :]

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._process = self._start()

    def terminate(self) -> None:
        self._process.terminate()

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """Wait for its end; return the exit code."""
        return self._process.wait(60)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)
