"""One run: its temporary folder, its servers, and their end."""

import itertools
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self, TypeVar, cast, overload

from outrider.testing.services.errors import ServiceMissing
from outrider.testing.services.keeper import start_keeper
from outrider.testing.services.lending import Lender, borrow
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
"""The kinds of servers, by the names that `Services.another` takes."""

_CLASSES: dict[str, type[Server]] = {kind.__name__: kind for kind in KINDS.values()}
_CLASSES[MockKafka.__name__] = MockKafka

S = TypeVar("S", bound=Server)


class Services:
    """Servers that start when first asked for and end with the run, however the run ends.

    A missing program is an error that names the command which brings it. With `install=True`, or
    OUTRIDER_TEST_INSTALL=1 in the environment, the program is installed instead.

    With `lender`, the address that `lend()` of another process returned, the shared servers are
    those of that process. `namespace` then separates this process from others that borrow them:
    PostgreSQL has a database, RabbitMQ a virtual host and Redis a database of that name. NATS and
    Kafka have no such thing; give streams and topics unique names there.
    """

    def __init__(
        self, *, install: bool = False, lender: Path | None = None, namespace: str = ""
    ) -> None:
        # Resolved, because servers report their folder without symbolic links.
        self.folder = Path(tempfile.mkdtemp(prefix="outrider-")).resolve()
        # PostgreSQL may run as another user, who must be able to enter.
        self.folder.chmod(0o711)
        self._keeper = start_keeper(self.folder)
        self._locks = {kind: Lock() for kind in KINDS}
        self._shared: dict[str, Server] = {}
        self._victims: dict[str, Server] = {}
        self._started: list[Server] = []
        self._numbers = itertools.count(1)
        self._install = install or os.environ.get("OUTRIDER_TEST_INSTALL") == "1"
        self._borrows_from, self._namespace = lender, namespace
        self._lender: Lender | None = None

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

    @overload
    def another(self, kind: str) -> Server: ...
    @overload
    def another(self, kind: type[S]) -> S: ...
    def another(self, kind: str | type[Server]) -> Server:
        """Start one more server, for a single test; a class may be one of your own."""
        return self._start(KINDS[kind] if isinstance(kind, str) else kind)

    def victim(self, kind: str) -> Server:
        """A second server, for tests that hurt it; it is started again whenever a test asks."""
        with self._locks[kind]:
            if kind not in self._victims:
                self._victims[kind] = self._start(KINDS[kind])
            self._victims[kind].start()
            return self._victims[kind]

    @property
    def running(self) -> list[Server]:
        known = dict.fromkeys([*self._shared.values(), *self._started])
        return [server for server in known if server.alive]

    def lend(self) -> Path:
        """Let other processes use the shared servers; return the address for `lender`."""
        if self._lender is None:
            self._lender = Lender(self.folder / "lender", lambda kind: self._share(KINDS[kind]))
        return self._lender.address

    def close(self) -> None:
        """Stop all servers and delete the folder."""
        if self._lender is not None:
            self._lender.close()
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda server: server.stop(), self._started))
        self._started.clear()
        self._keeper.communicate()

    def _share(self, kind: type[S]) -> S:
        with self._locks[kind.kind]:
            if kind.kind not in self._shared:
                self._shared[kind.kind] = self._find(kind)
            return cast("S", self._shared[kind.kind])

    def _find(self, kind: type[Server]) -> Server:
        if url := given_url(kind.kind):
            return kind(self.folder, given_url=url)
        if self._borrows_from is None:
            return self._start(kind)
        loan = borrow(self._borrows_from, kind.kind)
        server = _CLASSES[loan["class"]](Path(loan["folder"]))
        server.borrow(loan, self._namespace)
        return server

    def _start(self, kind: type[Server]) -> Server:
        try:
            return self._start_in_new_folder(kind)
        except ServiceMissing:
            if kind is Kafka and MockKafka.is_available():
                return self._start_in_new_folder(MockKafka)
            raise

    def _start_in_new_folder(self, kind: type[Server]) -> Server:
        server = kind(self.folder / f"{kind.kind}-{next(self._numbers)}")
        server.may_install = self._install
        # Added before it starts, so that a run that ends meanwhile stops it, too.
        self._started.append(server)
        server.start()
        return server


def given_url(kind: str) -> str | None:
    url = os.environ.get(f"OUTRIDER_TEST_{kind.upper()}_URL")
    return f"{kind}://{url}" if url and "://" not in url else url
