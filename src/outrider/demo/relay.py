"""The relay of the demo as a process of its own, so that it can be killed for real."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from datetime import timedelta

from outrider.demo.broker import HttpPublisher
from outrider.demo.shop import BROKER
from outrider.observability.logging import log_signals
from outrider.relay import OutboxRelay
from outrider.relay_state import RelayConfig
from outrider.retry import ExponentialRetry
from outrider.sql.engines import open_engine
from outrider.sql.store import SqlOutbox

CONFIG = RelayConfig(
    name="demo relay",
    poll_interval=timedelta(milliseconds=200),
    lease=timedelta(seconds=2),
    retry=ExponentialRetry(first=timedelta(seconds=1), cap=timedelta(seconds=2), attempts=3),
)


async def main(database: str, broker: str) -> None:
    engine = open_engine(database)
    store = SqlOutbox(engine, sink=BROKER)
    relay = OutboxRelay(store, HttpPublisher(broker), CONFIG, on_signal=log_signals)
    stopping: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: stopping.add(loop.create_task(relay.stop())))
    try:
        await relay.run()
    finally:
        await engine.dispose()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(main(*sys.argv[1:]))
