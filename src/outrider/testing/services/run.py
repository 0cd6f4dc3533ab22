"""One run: its temporary folder, its servers, and their end."""

import itertools
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self, TypeVar, cast

from outrider.testing.services.errors import ServiceMissing
from outrider.testing.services.keeper import start_keeper
from outrider.testing.services.servers.kafka import Kafka
from outrider.testing.services.servers.mock_kafka import MockKafka
from outrider.testing.services.servers.nats import Nats
from outrider.testing.services.servers.postgres import Postgres
from outrider.testing.services.servers.rabbitmq import RabbitMQ
from outrider.testing.services.servers.redis import Redis
from outrider.testing.services.servers.server import Server

KINDS: dict[str, type[Server]] = {
    kind.kind: kind for kind in (Postgres, RabbitMQ, Redis, Nats, Kafka)
}
"""The servers by the names that `Services.another` takes."""

S = TypeVar("S", bound=Server)


class Services:
    """Servers that start when first asked for and end with the run, however it ends."""

    def __init__(self) -> None:
        # Resolved, since some servers name their folder so when asked who they are.
        self.folder = Path(tempfile.mkdtemp(prefix="outrider-")).resolve()
        # PostgreSQL may run as another user, who has to pass through.
        self.folder.chmod(0o711)
        self._keeper = start_keeper(self.folder)
        self._locks = {kind: Lock() for kind in KINDS}
        self._shared: dict[str, Server] = {}
        self._victims: dict[str, Server] = {}
        self._started: list[Server] = []
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def postgres(self) -> Postgres:
        return self._share(Postgres)

    @property
    def rabbitmq(self) -> RabbitMQ:
        return self._share(RabbitMQ)

    @property
    def redis(self) -> Redis:
        return self._share(Redis)

    @property
    def nats(self) -> Nats:
        return self._share(Nats)

    @property
    def kafka(self) -> Kafka:
        return self._share(Kafka)

    def another(self, kind: str) -> Server:
        """One more private instance, for a test that wants one of its own."""
        return self._start(KINDS[kind])

    def victim(self, kind: str) -> Server:
        """A second instance, shared by tests that hurt it; up again whenever one asks for it."""
        with self._locks[kind]:
            if kind not in self._victims:
                self._victims[kind] = self._start(KINDS[kind])
            self._victims[kind].start()
            return self._victims[kind]

    @property
    def running(self) -> list[Server]:
        return [server for server in self._started if server.alive]

    def close(self) -> None:
        """Stop all servers and delete the folder."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda server: server.stop(), self._started))
        self._started.clear()
        self._keeper.communicate()

    def _share(self, kind: type[S]) -> S:
        with self._locks[kind.kind]:
            if kind.kind not in self._shared:
                url = given_url(kind.kind)
                self._shared[kind.kind] = (
                    kind(self.folder, given_url=url) if url else self._start(kind)
                )
            return cast("S", self._shared[kind.kind])

    def _start(self, kind: type[Server]) -> Server:
        try:
            return self._start_in_new_folder(kind)
        except ServiceMissing:
            if kind is Kafka and MockKafka.is_available():
                return self._start_in_new_folder(MockKafka)
            raise

    def _start_in_new_folder(self, kind: type[Server]) -> Server:
        server = kind(self.folder / f"{kind.kind}-{next(self._numbers)}")
        # Noted before it starts, so that a run which ends meanwhile stops it too.
        self._started.append(server)
        server.start()
        return server


def given_url(kind: str) -> str | None:
    url = os.environ.get(f"OUTRIDER_TEST_{kind.upper()}_URL")
    return f"{kind}://{url}" if url and "://" not in url else url
