"""A private Kafka: a single node that is broker and controller."""

import struct
from pathlib import Path

from outrider.testing.services.errors import ServiceMissing
from outrider.testing.services.install import maven
from outrider.testing.services.install.cache import locked
from outrider.testing.services.install.programs import Program
from outrider.testing.services.ports import LOOPBACK, exchange
from outrider.testing.services.servers.server import Server

VERSION = "4.1.0"
_JARS = f"kafka-{VERSION}"
_COORDINATES = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    # Without it the broker does not log its errors.
    "org.slf4j:slf4j-simple:1.7.36",
)
_REMEDY = "sudo apt-get install default-jre-headless maven"
_DOWNLOAD = "python -m outrider.testing.services kafka --install --seconds 0"

JAVA = Program(service="kafka", names=("java",), package="default-jre-headless", remedy=_REMEDY)
MAVEN = Program(service="kafka", names=("mvn",), package="maven", remedy=_REMEDY)


class Kafka(Server):
    """One broker that is also its controller."""

    kind = "kafka"
    ports_needed = 2  # clients, controller
    deadline = 120

    @property
    def version(self) -> str:
        return VERSION

    def prepare(self) -> None:
        if not maven.jars(_JARS).is_dir():
            self._fetch_jars()
        self._archive_classes()
        settings = self.folder / "server.properties"
        settings.write_text("\n".join(f"{name}={value}" for name, value in self._settings()))
        if not (self.folder / "data").exists():
            # own() recognises the broker by the id of its cluster.
            identity = ("--cluster-id", self.name, "--config", str(settings))
            self.run(*self._java("kafka.tools.StorageTool", "format", *identity))

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self.folder / "server.properties"))

    def private_url(self) -> str:
        return f"kafka://{LOOPBACK}:{self.port}"

    def ask(self) -> bytes:
        # A metadata request, version 2, for no topic: the answer holds the cluster's id.
        body = struct.pack(">hhih", 3, 2, 1, -1) + struct.pack(">i", 0)
        return exchange(self.port, struct.pack(">i", len(body)) + body)

    def _fetch_jars(self) -> None:
        mvn = self.program(MAVEN)
        if not self.may_install:
            raise ServiceMissing(self.kind, _DOWNLOAD)
        maven.fetch(_JARS, _COORDINATES, mvn)

    def _archive_classes(self) -> None:
        """Create a class data sharing archive once: with it, a start takes half the time."""
        with locked(_JARS):
            if not _archive().exists():
                once = _Archiving(self.folder / "archiving")
                once.start()
                once.stop()
                _new_archive().touch()  # a Java without this feature is not tried again
                _new_archive().rename(_archive())

    def _java(self, *arguments: str) -> list[str]:
        return [
            str(self.program(JAVA)),
            f"-XX:SharedArchiveFile={_archive()}",
            "-Xlog:disable",  # no warning if the archive is of another Java version
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # a faster start; slower code is no problem here
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{maven.jars(_JARS)}/*",
            *arguments,
        ]

    def _settings(self) -> list[tuple[str, object]]:
        clients, controller = (f"{LOOPBACK}:{port}" for port in self.ports)
        return [
            ("process.roles", "broker,controller"),
            ("node.id", 1),
            ("controller.quorum.voters", f"1@{controller}"),
            ("controller.listener.names", "CONTROLLER"),
            ("listeners", f"PLAINTEXT://{clients},CONTROLLER://{controller}"),
            ("advertised.listeners", f"PLAINTEXT://{clients}"),
            ("log.dirs", self.folder / "data"),
            ("num.partitions", 4),
            ("offsets.topic.num.partitions", 4),
            ("offsets.topic.replication.factor", 1),
            ("transaction.state.log.num.partitions", 4),
            ("transaction.state.log.replication.factor", 1),
            ("transaction.state.log.min.isr", 1),
            ("group.initial.rebalance.delay.ms", 0),
            # Otherwise it writes an empty record twice a second.
            ("metadata.max.idle.interval.ms", 0),
            # A killed broker can register again only after its last session has expired.
            ("broker.session.timeout.ms", 2000),
            ("broker.heartbeat.interval.ms", 500),
        ]


class _Archiving(Kafka):
    """A broker that writes the archive when it ends."""

    def _archive_classes(self) -> None: ...

    def command(self) -> list[str]:
        java, _, *rest = super().command()
        return [java, f"-XX:ArchiveClassesAtExit={_new_archive()}", *rest]


def _archive() -> Path:
    return maven.jars(f"{_JARS}.jsa")


def _new_archive() -> Path:
    return maven.jars(f"{_JARS}.jsa.new")
