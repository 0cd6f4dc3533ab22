"""The private servers, started when the first test asks for one and shared by all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from outrider.testing.services import ServiceMissing, Services

# A shell that starts us in the background has us ignore it, and so would all we start.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.faults.scoreboard"]

_cost: dict[str, int] = {}


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    with Services() as services:
        yield services


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from _missing_service_skips()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from _missing_service_skips()


def _missing_service_skips() -> Iterator[None]:
    """A laptop without a server skips what needs it; CI must have them all."""
    try:
        return (yield)
    except ServiceMissing as missing:
        if os.environ.get("CI"):
            raise
        _cost[str(missing)] = _cost.get(str(missing), 0) + 1
        pytest.skip(str(missing))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason, count in _cost.items():
        terminalreporter.write_line(f"{count} tests skipped: {reason}", yellow=True)
