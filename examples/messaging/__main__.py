"""`python -m examples.messaging`: the tables, then the server, for this machine only."""

import argparse
import logging
import os
import sys

import uvicorn

from outrider import ConfigurationError

from .app import create_app
from .database import upgrade
from .settings import Settings

HOST = "127.0.0.1"
TRY = """
Messaging at {url}, its API at {url}/docs. Try in another terminal:

  id=7a1e8a4e-0000-4000-8000-000000000001
  curl -s {url}/group-messages -H "X-User-ID: $id" --json '{{"account_id": "'$id'",
    "channel_id": "'$id'", "template_id": "'$id'", "contact_group_ids": ["'$id'"]}}'
  curl -s {url}/processed
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.messaging", description=__doc__)
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
    port = parser.parse_args().port
    settings = Settings.read(os.environ)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    try:
        upgrade(settings.database_url)
    except ConfigurationError as error:
        sys.exit(f"{error}. This example needs a database of its own: set DATABASE_URL.")
    print(TRY.format(url=f"http://{HOST}:{port}"), flush=True)
    uvicorn.run(create_app(settings), host=HOST, port=port, timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main()
