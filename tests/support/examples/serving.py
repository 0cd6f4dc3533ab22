"""Example applications over real HTTP: in their own process, or in the test's event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import uvicorn
from fastapi import FastAPI

from outrider.testing.services.ports import LOOPBACK, free_ports
from tests.support.processes.forking import Child, run_module
from tests.support.until import wait_until

MAX_WAIT_S = 60.0
ROOT = Path(__file__).parents[3]
# Other variables of the caller must not reach the application.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")


class Application:
    """A running `python -m examples.<name>`, with a log of its output."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://{LOOPBACK}:{self.port}"
        self._log = folder / f"{name}-{self.port}.log"
        inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        self._log.touch()
        self._process = Child(
            *(run_module, f"examples.{name}", "--port", str(self.port)),
            environment={**inherited, **environment},
            log=self._log,
        )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        assert self._process.poll() is None, f"it has ended:\n{self.log}"
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal; return the exit code, negative if the signal ended it."""
        self._process.send_signal(number)
        try:
            return self._process.wait(MAX_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it does not end:\n{self.log}") from None


@contextmanager
def serving(
    name: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Application]:
    """Start an example in its own process; wait until it answers, stop it at the end."""
    application = Application(name, folder, environment or {})
    try:
        assert wait_until(lambda: application.is_ready, MAX_WAIT_S), application.log
        yield application
        # Uvicorn shuts down first, then raises the signal again.
        assert application.stop() in (0, -signal.SIGTERM), application.log
    finally:
        application.kill()


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """Serve an application, which may have a replaced part, in this event loop; give its URL."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                while not server.started and not running.done():  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.01)
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


def fuzz(url: str, *, examples: int = 8) -> str:
    """Send all that the OpenAPI document allows, and what it forbids; what Schemathesis says of
    answers that are no answers."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--checks", "not_a_server_error,response_schema_conformance"]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)]
    command += ["--generation-database", "none", "--suppress-health-check", "all", "--no-color"]
    with TemporaryDirectory() as folder:  # it writes files into its working folder
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
    return "" if done.returncode == 0 else done.stdout + done.stderr
