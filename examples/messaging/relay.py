"""The relay as a separate process: `outrider relay examples.messaging.relay:relay`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outrider import ConfigurationError, OutboxRelay, SqlOutboxStore, open_engine
from outrider.brokers.rabbitmq import RabbitMQPublisher

from .models import OUTBOX_TABLES
from .settings import Settings
from .topology import messaging_topology


@asynccontextmanager
async def relay() -> AsyncIterator[OutboxRelay]:
    """At its start it declares exchanges, queues and dead letters."""
    settings = Settings.read(os.environ)
    if settings.rabbitmq_url is None:
        raise ConfigurationError("RABBITMQ_URL is not set, so the API's own process publishes")
    topology = messaging_topology(settings.exchange, audit=settings.audit)
    publisher = RabbitMQPublisher(
        settings.rabbitmq_url, exchange=settings.exchange, topology=topology
    )
    engine = open_engine(settings.database_url)
    try:
        yield OutboxRelay(SqlOutboxStore(engine, OUTBOX_TABLES), publisher, settings.relay)
    finally:
        await engine.dispose()
