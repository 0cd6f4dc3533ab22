"""The mock cluster in the confluent-kafka wheel, for machines without Java."""

import importlib.util
import os
import re
import sys

from outrider.testing.services.servers.kafka import Kafka

_PROGRAM = """
import signal
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
[broker] = producer.list_topics(timeout=10).brokers.values()
print(broker.port, flush=True)
signal.pause()
"""


class MockKafka(Kafka):
    note = "a mock in memory: a restart loses its data and changes its port"
    ports_needed = 0  # it chooses one by itself
    mark = "mockCluster"

    @staticmethod
    def is_available() -> bool:
        return importlib.util.find_spec("confluent_kafka") is not None

    @property
    def version(self) -> str:
        return "mock"

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        return [sys.executable, "-c", _PROGRAM]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(sys.path)}

    def ask(self) -> bytes:
        printed = re.findall(r"^\d+$", self.log.read_text(), re.MULTILINE)
        if not printed:
            return b""
        self.ports = [int(printed[-1])]
        return super().ask()
