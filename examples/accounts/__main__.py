"""`python -m examples.accounts`: one process, for this machine only."""

import argparse
import logging
import os

import uvicorn

from examples.accounts.app import create_app
from examples.accounts.settings import Settings
from outrider.observability import EventFormatter

HOST = "127.0.0.1"
TRY = """
Accounts at {url}, its API at {url}/docs. Try in another terminal:

  id=$(curl -s {url}/accounts --json '{{"email": "ada@example.org", "display_name": "Ada"}}' |
    cut -d '"' -f 4)
  curl -s {url}/accounts/$id {url}/profiles/$id
  curl -s {url}/failed-events
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.accounts", description=__doc__)
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
    port = parser.parse_args().port
    settings = Settings.read(os.environ)
    log = logging.StreamHandler()
    log.setFormatter(EventFormatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[log])
    print(TRY.format(url=f"http://{HOST}:{port}"), flush=True)
    uvicorn.run(create_app(settings), host=HOST, port=port, timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main()
