"""A Kafka that sends its clients to another port than its own, where a faulty link listens."""

from __future__ import annotations

from functools import cached_property

from outrider.testing.services import KINDS, Services
from outrider.testing.services.ports import LOOPBACK, free_ports
from outrider.testing.services.servers.kafka import Kafka

_KIND = "kafka behind a link"


class LinkedKafka(Kafka):
    @cached_property
    def link_port(self) -> int:
        return free_ports(1)[0]

    def _settings(self) -> list[tuple[str, object]]:
        settings = dict(super()._settings())
        settings["advertised.listeners"] = f"PLAINTEXT://{LOOPBACK}:{self.link_port}"
        return [*settings.items()]


def start(services: Services) -> LinkedKafka:
    KINDS[_KIND] = LinkedKafka
    try:
        server = services.another(_KIND)
    finally:
        del KINDS[_KIND]
    assert isinstance(server, LinkedKafka)
    return server
