"""The dashboard as a process: `outrider consume examples.decisions.consumer:consumer`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from examples.decisions.dashboard import projection
from examples.decisions.settings import Settings
from outrider import (
    ConfigurationError,
    ConsumerConfig,
    EventConsumer,
    ExponentialRetry,
    open_engine,
)
from outrider.brokers.redis import RedisSource
from outrider.observability import log_signals

STREAM = "decisions"
RETRY = ExponentialRetry(first=timedelta(seconds=0.2))


@asynccontextmanager
async def consumer() -> AsyncIterator[EventConsumer]:
    """For the command; what fails four times goes to the stream `decisions.dlq`."""
    settings = Settings.read(os.environ)
    if settings.redis_url is None:
        raise ConfigurationError("REDIS_URL is not set, so the API's own process does the work")
    engine = open_engine(settings.database_url)
    try:
        yield EventConsumer(
            RedisSource(settings.redis_url, STREAM, group="dashboard"),
            projection(engine),
            ConsumerConfig(name="dashboard", retry=RETRY, max_retries=4),
            on_signal=log_signals,
        )
    finally:
        await engine.dispose()
