"""Starts private servers, prints their URLs, and stops them on Ctrl-C."""

import argparse
import signal
import sys
import time
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread

from outrider.testing.services import KINDS, Server, Services


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    all_up = False
    with suppress(KeyboardInterrupt), Services(install=options.install) as services:
        all_up = _start(services, options.kinds or list(KINDS))
        print("up; Ctrl-C ends them", flush=True)
        Event().wait(options.seconds)
    return 0 if all_up else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m outrider.testing.services")
    parser.add_argument("kinds", nargs="*", metavar="kind", help=", ".join(KINDS))
    parser.add_argument("--install", action="store_true", help="install what is missing")
    parser.add_argument("--seconds", type=float, help="end by itself after this time")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    return options


def _start(services: Services, kinds: list[str]) -> bool:
    """Start all servers at the same time, print each when it is up; return whether all are."""
    answers: SimpleQueue[tuple[str, Server | Exception]] = SimpleQueue()
    for kind in kinds:
        # Daemon threads, so that Ctrl-C does not wait for a download.
        Thread(target=_start_one, args=(services, kind, answers), daemon=True).start()
    began = time.monotonic()
    all_up = True
    for _ in kinds:
        kind, answer = answers.get()
        if isinstance(answer, Server):
            took = f"({time.monotonic() - began:.1f} s)"
            version = "given" if answer.given_url else answer.version
            print(kind, version, answer.url, took, answer.note, flush=True)
        else:
            all_up = False
            print(f"{kind}: {answer}", file=sys.stderr, flush=True)
    return all_up


def _start_one(
    services: Services, kind: str, answers: SimpleQueue[tuple[str, Server | Exception]]
) -> None:
    try:
        answers.put((kind, getattr(services, kind)))
    # The main thread waits for an answer, whatever happens.
    except Exception as error:  # noqa: BLE001
        answers.put((kind, error))


if __name__ == "__main__":
    sys.exit(main())
