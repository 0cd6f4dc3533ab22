"""`python -m examples.event_logger`: one process, for this machine only."""

import argparse
import asyncio
import logging
import os
import sys

import uvicorn

from examples.event_logger.app import create_app
from examples.event_logger.settings import Settings
from examples.event_logger.tables import create_tables
from outrider import ConfigurationError, open_engine
from outrider.observability import EventFormatter

HOST = "127.0.0.1"
TRY = """
Open {url} in a browser; the API is at {url}/docs. Try in another terminal:

  curl -N "{url}/events?from=start" &
  curl -s {url}/messages --json '{{"channel": "lobby", "text": "hello"}}'
  curl -s {url}/metrics | grep ^outbox_
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.event_logger", description=__doc__)
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
    port = parser.parse_args().port
    settings = Settings.read(os.environ)
    log = logging.StreamHandler()
    log.setFormatter(EventFormatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[log])
    try:
        asyncio.run(_create_tables(settings.database_url))
    except ConfigurationError as error:
        sys.exit(f"{error}. This example needs a database of its own: set DATABASE_URL.")
    print(TRY.format(url=f"http://{HOST}:{port}"), flush=True)
    uvicorn.run(create_app(settings), host=HOST, port=port, timeout_graceful_shutdown=5)


async def _create_tables(url: str) -> None:
    engine = open_engine(url)
    try:
        await create_tables(engine)
    finally:
        await engine.dispose()


if __name__ == "__main__":
    main()
