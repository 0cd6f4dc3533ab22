"""A relay with short timeouts, and with a separate proxy for its notifications."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from outrider import OutboxRelay, RelayConfig, open_engine
from outrider.observability.logging import log_signals
from outrider.ports import EventPublisher
from outrider.signals import Signal
from outrider.store.postgres.connections import ConnectionPool
from outrider.store.postgres.notifications import NotificationListener
from outrider.store.postgres.store import PostgresOutboxStore
from tests.support.faults.flow import BATCH

CALL_TIMEOUT = timedelta(seconds=2)
COMMAND = ("relay", "tests.support.processes.linked_relay:relay")
LONGEST_CALL = "longest call: "


class OutboxWithTwoLinks(PostgresOutboxStore):
    """Listens for notifications by another URL, so that tests can cut only that connection."""

    def __init__(self, url: str, listen_url: str) -> None:
        super().__init__(open_engine(url), timeout=CALL_TIMEOUT)
        self._listening = ConnectionPool(open_engine(listen_url), CALL_TIMEOUT)

    async def open(self, wake: Callable[[str], None], /) -> str:
        opened = await super().open(wake)
        if self._listener is not None:
            await self._listener.close()
        self._listener = NotificationListener(self._listening, self._channel, wake)
        await self._listener.open()
        return opened

    async def close(self) -> None:
        await super().close()
        await self._listening.close()


def publisher_of(url: str, name: str) -> EventPublisher:
    soon: Any = {"connect_timeout": CALL_TIMEOUT / 2, "publish_timeout": CALL_TIMEOUT}
    match url.partition("://")[0]:
        case "amqp":
            from outrider.brokers.rabbitmq import RabbitMQConfig, RabbitMQPublisher

            return RabbitMQPublisher(url, exchange=name, config=RabbitMQConfig(**soon))
        case "kafka":
            from outrider.brokers.kafka import KafkaConfig, KafkaPublisher

            return KafkaPublisher(url, topic=name, config=KafkaConfig(**soon, partitions=4))
        case "nats":
            from outrider.brokers.nats import NatsConfig, NatsPublisher

            config = NatsConfig(**soon, request_timeout=CALL_TIMEOUT / 2)
            return NatsPublisher(url, stream=name, subject=name, config=config)
        case _:
            from outrider.brokers.redis import RedisConfig, RedisPublisher

            config = RedisConfig(connect_timeout=CALL_TIMEOUT / 2, publish_timeout=CALL_TIMEOUT)
            return RedisPublisher(url, stream=name, config=config)


class Calls:
    """Keeps the longest duration of a claim or a publish."""

    def __init__(self) -> None:
        self.longest = timedelta(0)

    def listen(self, signal: Signal) -> None:
        self.longest = max(self.longest, getattr(signal, "took", self.longest))
        log_signals(signal)


@asynccontextmanager
async def relay() -> AsyncIterator[OutboxRelay]:
    urls, calls = os.environ, Calls()
    store = OutboxWithTwoLinks(urls["DATABASE_URL"], urls["LISTEN_URL"])
    config = RelayConfig(
        batch_size=BATCH,
        lease=timedelta(seconds=3),
        poll_interval=timedelta(milliseconds=300),
        publish_timeout=CALL_TIMEOUT * 1.5,
    )
    publisher = publisher_of(urls["OUTBOX_TO"], urls["OUTBOX_DESTINATION"])
    yield OutboxRelay(store, publisher, config, on_signal=calls.listen)
    print(f"{LONGEST_CALL}{calls.longest.total_seconds():.2f} s", flush=True)
