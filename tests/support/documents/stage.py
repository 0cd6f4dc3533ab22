"""Runs the blocks of a page: its files, terminals and servers, in a temporary folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.documents import checks, forks
from tests.support.documents.blocks import NEW_TERMINAL, ROOT, SAME_TERMINAL, Block

DEADLINE = 90
# Addresses in the pages, and the private server that replaces each of them.
POSTGRES = "postgresql://shop:secret@localhost/shop"
SERVERS: dict[str, Callable[[Services], str]] = {
    POSTGRES: create_database,
    **{
        POSTGRES.removesuffix("shop") + example: create_database
        for example in ("accounts", "decisions", "event_logger", "messaging")
    },
    "amqp://shop:secret@localhost/": lambda services: services.rabbitmq.url,
    "redis://:secret@localhost:6379/0": lambda services: services.redis.url,
    "nats://shop:secret@localhost:4222": lambda services: services.nats.url,
    "kafka://localhost:9092": lambda services: services.kafka.url,
}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Stage:
    """Runs blocks in order; files and exported variables stay for the later blocks."""

    def __init__(self, folder: Path, services: Callable[[], Services]) -> None:
        self._folder, self._services = folder, services
        ports = {written: _free_port() for written in (8000, 8001, 9100)}
        self._addresses = {
            form.format(written): form.format(free)
            for written, free in ports.items()
            for form in (":{}/", "--port {}", "127.0.0.1:{}")
        }
        self._exports: list[str] = []
        self._terminals: list[tuple[Block, subprocess.Popen[bytes], Path]] = []
        source = os.pathsep.join([str(ROOT / "src"), str(folder), str(ROOT)])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"PYTHONUNBUFFERED": "1", "COLUMNS": "200", "PORT": str(ports[8000])}
        self._environment = {**own, "PYTHONPATH": source, "PATH": path}

    def play(self, block: Block) -> None:
        code = self._with_addresses(block.code)
        if block.excerpt:
            checks.excerpt(block)
        elif block.language not in ("python", "sh", "sql"):
            checks.parse(block, code)
        elif block.language == "sh":
            self._shell(block, code)
        elif block.language == "sql":
            url = self._with_addresses(POSTGRES)
            self._run(block, ["psql", url, "-qv", "ON_ERROR_STOP=1", "-c", code])
        elif block.title:
            checks.parse(block, code)
            (self._folder / block.title).write_text(code)
        else:
            code = "\n" * block.line + code  # so that a traceback names the page's line
            _compare(block, forks.run_python(code, str(block), self._folder, self._environment))

    def close(self) -> None:
        """End all terminals, the last first; fail if one ends with an error."""
        while self._terminals:
            self._end_last_terminal()

    def _end_last_terminal(self) -> None:
        block, process, printed = self._terminals[-1]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        code = process.wait(DEADLINE)
        self._terminals.pop()
        assert code in (0, -signal.SIGTERM), f"{block} ended with {code}\n{_read(printed)}"

    def kill(self) -> None:
        for _, process, _ in self._terminals:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _with_addresses(self, code: str) -> str:
        for written, start in SERVERS.items():
            if written in code and written not in self._addresses:
                self._addresses[written] = start(self._services())
                if written == POSTGRES:  # psql may exist only beside its server
                    self._environment["PATH"] += f":{self._services().postgres.programs}"
        for written, private in self._addresses.items():
            code = code.replace(written, private)
        return code

    def _shell(self, block: Block, code: str) -> None:
        lines = code.replace("\\\n", " ").splitlines()
        lines = [line for line in lines if not checks.check_names(line)]
        script = "\n".join([*self._exports, *lines])
        self._exports += [line for line in lines if line.startswith("export ")]
        command = ["bash", "-euo", "pipefail", "-c", script]
        if block.title == SAME_TERMINAL:
            self._end_last_terminal()
        if block.title in (NEW_TERMINAL, SAME_TERMINAL):
            # exec, so that the program itself gets the signal and its exit code is seen.
            head, _, last = script.rpartition("\n")
            self._open_terminal(block, [*command[:-1], f"{head}\nexec {last}"])
        elif all(map(forks.can_run, lines)):
            exports = forks.exported(self._exports, self._environment)
            printed = [forks.run_command(one, self._folder, exports) for one in lines]
            _compare(block, "\n".join(printed))
        else:
            self._run(block, command)

    def _run(self, block: Block, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE,
            check=False,
        )
        printed = done.stdout.decode()
        assert done.returncode == 0, f"{block} ended with {done.returncode}\n{printed}"
        _compare(block, printed)

    def _open_terminal(self, block: Block, command: list[str]) -> None:
        """Start a command, and wait until it has printed what the page shows."""
        printed = self._folder / f".terminal-{block.line}"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._terminals.append((block, process, printed))
        deadline = time.monotonic() + DEADLINE
        while missing := _missing(block, _read(printed)):
            assert process.poll() is None, f"{block} has ended\n{_read(printed)}"
            assert time.monotonic() < deadline, f"{block}: no {missing!r} in\n{_read(printed)}"
            time.sleep(0.1)


def _read(printed: Path) -> str:
    return printed.read_text(errors="replace")


def _compare(block: Block, printed: str) -> None:
    missing = _missing(block, printed)
    assert not missing, f"{block}: the page says that it prints {missing!r}; it printed\n{printed}"


def _missing(block: Block, printed: str) -> str | None:
    """The first promised line that was not printed; … stands for anything."""
    seen = [" ".join(line.split()) for line in printed.splitlines()]
    for line in filter(None, (" ".join(line.split()) for line in block.prints.splitlines())):
        pattern = ".*".join(map(re.escape, line.split("…")))
        if not any(re.search(pattern, other) for other in seen):
            return line
    return None
