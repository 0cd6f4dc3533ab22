"""`python -m examples.decisions`: the API, for this machine only."""

import argparse
import logging
import os

import uvicorn

from examples.decisions.app import create_app
from examples.decisions.settings import Settings
from outrider.observability import EventFormatter

HOST = "127.0.0.1"
TRY = """
Decisions at {url}, its API at {url}/docs. Try in another terminal:

  curl -s {url}/sessions -H 'X-User-ID: ada' --json '{{"title": "Move to the sea?"}}'
  curl -s {url}/dashboard -H 'X-User-ID: ada'
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.decisions", description=__doc__)
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
