"""A Kafka that tells its clients to connect to another port, where a faulty proxy listens."""

from __future__ import annotations

from functools import cached_property

from outrider.testing.services.ports import LOOPBACK, free_ports
from outrider.testing.services.servers.kafka import Kafka


class LinkedKafka(Kafka):
    @cached_property
    def link_port(self) -> int:
        return free_ports(1)[0]

    def _settings(self) -> list[tuple[str, object]]:
        settings = dict(super()._settings())
        settings["advertised.listeners"] = f"PLAINTEXT://{LOOPBACK}:{self.link_port}"
        return [*settings.items()]
