"""What a process of the command line needs beside `RelayConfig` and `OutboxNames`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outrider.errors import ConfigurationError
from outrider.ports import DEFAULT_SINK
from outrider.store.engines import with_driver

_MAX_PROCESSES = 64
_MAX_PORT = 65_535
_MAX_SINK = 63


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """How `outrider relay` and `outrider consume` run.

    Metadata of a field: `prefix` begins the environment variable (`OUTBOX_` if there is none),
    `aliases` are further environment variables, `url` marks a URL, which may hold a password.
    """

    processes: int = field(default=1, metadata={"prefix": "OUTRIDER_"})
    """How many processes to start; they share the work among themselves."""
    health: str | None = field(default=None, metadata={"prefix": "OUTRIDER_"})
    """HOST:PORT that answers /livez, /readyz and /metrics; each further process takes the next
    port."""
    quiet: bool = field(default=False, metadata={"prefix": "OUTRIDER_"})
    """Log warnings and errors only."""
    audit: bool = field(default=True, metadata={"prefix": "OUTRIDER_"})
    """Log one line for every event that is published or handled, unless quiet."""

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= _MAX_PROCESSES:
            raise ConfigurationError(f"processes must be from 1 to {_MAX_PROCESSES}")
        if self.health is not None and not self._has_ports(self.health):
            raise ConfigurationError(
                f"health must be HOST:PORT or :PORT, with ports up to {_MAX_PORT} for all processes"
            )

    def _has_ports(self, address: str) -> bool:
        port = address.rpartition(":")[2] if ":" in address else ""
        is_number = port.isascii() and port.isdigit() and len(port) <= len(str(_MAX_PORT))
        return is_number and int(port) + self.processes - 1 <= _MAX_PORT


@dataclass(frozen=True, kw_only=True)
class RelayProcessConfig(ProcessConfig):
    """What a relay process reads from and publishes to."""

    database: str | None = field(
        default=None, repr=False, metadata={"aliases": ("DATABASE_URL",), "url": True}
    )
    """The database: postgresql://user:password@host/name or sqlite:///file."""
    to: str | None = field(
        default=None, repr=False, metadata={"aliases": ("RABBITMQ_URL",), "url": True}
    )
    """The broker: a URL that begins with amqp://, kafka://, nats:// or redis://; amqps://, tls://
    and rediss:// use TLS."""
    destination: str = field(default="messaging", metadata={"aliases": ("RABBITMQ_EXCHANGE",)})
    """The exchange, topic or stream at the broker."""
    sink: str = DEFAULT_SINK
    """Publish the events that routes assign to this sink."""
    rabbitmq_topology: str | None = field(
        default=None, metadata={"aliases": ("RABBITMQ_TOPOLOGY",)}
    )
    """What to declare in RabbitMQ beside the exchange: module:name of a Topology."""
    after_failure: Literal["go-on", "park"] = "go-on"
    """What happens to later events of an aggregate when one has failed: go-on publishes them, park
    holds them back until a person retries or discards the failed event."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < len(self.sink) <= _MAX_SINK and self.sink.isprintable()):
            raise ConfigurationError(f"sink must have 1 to {_MAX_SINK} printable characters")
        if self.database is not None:
            with_driver(self.database)
