"""A private server: its folder, its ports, its processes, and the proof that it is ours."""

import os
import pwd
import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psutil

from outrider.testing.services import keeper
from outrider.testing.services.errors import NotOurs, ServerFailed
from outrider.testing.services.install.programs import Program
from outrider.testing.services.ports import free_ports, is_free

# Other variables of the caller (PGHOST, RABBITMQ_…, JAVA_TOOL_OPTIONS) must not reach the server.
_INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "JAVA_HOME", "TMPDIR")


class Server(ABC):
    """What all kinds of servers have in common."""

    kind: ClassVar[str]
    ports_needed: ClassVar[int] = 1
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    deadline: ClassVar[float] = 60
    note: ClassVar[str] = ""

    def __init__(self, folder: Path, *, given_url: str | None = None) -> None:
        self.folder = folder
        self.given_url = given_url
        # 22 characters, so that it is also a valid id of a Kafka cluster.
        self.name = "outrider" + secrets.token_hex(7)
        self.password = secrets.token_hex(16)
        self.ports: list[int] = []
        self.may_install = False
        self._process: subprocess.Popen[bytes] | None = None
        self._is_borrowed = False

    @abstractmethod
    def prepare(self) -> None:
        """Find the program and fill the folder; called before every start."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def ask(self) -> bytes:
        """Ask the server on the port for something that identifies it."""

    @abstractmethod
    def private_url(self) -> str: ...

    @property
    @abstractmethod
    def version(self) -> str: ...

    @property
    def mark(self) -> str:
        """What the answer of this server contains, and no other server's answer."""
        return self.name

    def environment(self) -> dict[str, str]:
        """For the server and for its tools."""
        return {}

    def server_environment(self) -> dict[str, str]:
        """For the server alone."""
        return {}

    def enter(self, namespace: str) -> None:  # noqa: B027 - a kind without namespaces does nothing
        """Use only what belongs to the namespace, and create that first."""

    def program(self, program: Program) -> Path:
        """Where a program is; installed if that is allowed."""
        return program.get(install=self.may_install)

    def loan(self) -> dict[str, Any]:
        """What another process has to know about this server to use it."""
        return {
            "class": type(self).__name__,
            "folder": str(self.folder),
            "name": self.name,
            "password": self.password,
            "ports": self.ports,
        }

    def borrow(self, loan: dict[str, Any], namespace: str) -> None:
        """Stand for a server that another process of the same run started."""
        self.name, self.password, self.ports = loan["name"], loan["password"], loan["ports"]
        self._is_borrowed = True
        if namespace:
            self.enter(namespace)

    def account(self) -> pwd.struct_passwd | None:
        """The user that runs the server, if not the caller."""
        return None

    @property
    def url(self) -> str:
        return self.given_url or self.private_url()

    @property
    def address(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def alive(self) -> bool:
        if self.given_url:
            return True
        if self._is_borrowed:
            return self.answers()
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, or start again on the same port and the same data."""
        self._must_be_private()
        if self.alive:
            return
        if self.ports:
            self._start_once()
            return
        self._make_folder()
        for attempts_left in (2, 1, 0):
            self.ports = free_ports(self.ports_needed)
            try:
                self._start_once()
                return
            except ServerFailed:
                lost_a_port = not all(is_free(port) for port in self.ports)
                if not (lost_a_port and attempts_left):
                    raise

    def stop(self) -> None:
        """Stop the server; kill it if it still runs at the deadline."""
        self._must_be_private()
        if self._process is not None and self.alive:
            self._process.send_signal(self.stop_signal)
            self.resume()
            wait_until(lambda: not self.alive, self.deadline)
        self.kill()

    def kill(self) -> None:
        """SIGKILL all its processes; return when they are gone."""
        self._must_be_private()
        keeper.kill(self.folder)
        if self._process is not None:
            self._process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        self._must_be_private()
        keeper.freeze(self.folder)

    def resume(self) -> None:
        self._must_be_private()
        keeper.thaw(self.folder)

    def own(self) -> None:
        """Raise NotOurs unless a process of this run listens on the port and answers."""
        self._must_be_ours()
        if not any(_listens(process, self.port) for process in keeper.processes_in(self.folder)):
            raise NotOurs(f"no process of {self.folder} listens on port {self.port}")
        if not self.answers():
            raise NotOurs(f"what answers on port {self.port} is not the {self.kind} of this run")

    def answers(self) -> bool:
        """Whether this server answers now, and not another one on its port."""
        try:
            return self.mark.encode() in self.ask()
        except (OSError, ServerFailed):
            return False

    def run(self, *command: str | Path, timeout: float = 60, stdin: str = "") -> str:
        """Run one of the server's own tools and return what it prints."""
        try:
            done: subprocess.CompletedProcess[str] = subprocess.run(
                command,
                cwd=self.folder,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                **self._surroundings(),
            )
        except subprocess.TimeoutExpired as error:
            raise ServerFailed(f"{command[0]} took longer than {timeout} s") from error
        if done.returncode != 0:
            raise ServerFailed(f"{command[0]} failed: {_tail(done.stdout + done.stderr)}")
        return done.stdout

    def _must_be_ours(self) -> None:
        if self.given_url:
            raise NotOurs(f"this {self.kind} was given by its URL; it may only be used")

    def _must_be_private(self) -> None:
        self._must_be_ours()
        if self._is_borrowed:
            raise NotOurs(
                f"this {self.kind} is shared with other processes; "
                f"take victim({self.kind!r}) or another({self.kind!r})"
            )

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700)
        if account := self.account():
            os.chown(self.folder, account.pw_uid, account.pw_gid)

    def _start_once(self) -> None:
        self.prepare()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._surroundings(self.server_environment()),
            )
        if not self._has_answered():
            self.kill()
            end_of_log = _tail(self.log.read_text(errors="replace"))
            raise ServerFailed(f"{self.kind} did not start; its log ends with:\n{end_of_log}")

    def _has_answered(self) -> bool:
        """Wait for the first answer, which is enough: on a busy machine the next may come late."""
        answered = False

        def is_decided() -> bool:
            nonlocal answered
            answered = self.answers()
            return answered or not self.alive

        wait_until(is_decided, self.deadline)
        return answered

    def _surroundings(self, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        ours = {"HOME": str(self.folder), keeper.MARK: str(self.folder)}
        surroundings: dict[str, Any] = {"env": inherited | ours | self.environment() | dict(more)}
        if account := self.account():
            surroundings |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        return surroundings


def wait_until(condition: Callable[[], bool], within: float) -> bool:
    deadline = time.monotonic() + within
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        sockets = process.net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets)


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
