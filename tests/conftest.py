"""The private servers of a run, which all test workers share, and a database for each test."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outrider import Outbox
from outrider.testing.services import ServiceMissing, Services
from tests.support.databases import (
    ASYNC_DRIVERS,
    close,
    engine_with_outbox,
    transactional_sqlite,
)

# A shell that starts this process in the background makes it, and all its children, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.faults.scoreboard"]

_TESTS = Path(__file__).parent
# Measuring doubles the time of a test: that of the integration tests would take two more minutes.
_MEASURED = ("conformance", "unit")
_cost: dict[str, int] = {}


_OWNER = pytest.StashKey[Services]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each worker of pytest-xdist where this process lends the servers of the run."""
    node.workerinput["lender"] = str(_owner(node.config).lend())


def pytest_unconfigure(config: pytest.Config) -> None:
    if owner := config.stash.get(_OWNER, None):
        owner.close()


def _owner(config: pytest.Config) -> Services:
    if _OWNER not in config.stash:
        config.stash[_OWNER] = Services(install=True)
    return config.stash[_OWNER]


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Iterator[Services]:
    """Servers that this run shares; a test that hurts a server takes a victim, or another."""
    worker = getattr(pytestconfig, "workerinput", None)
    lender = worker["lender"] if worker else _owner(pytestconfig).lend()
    namespace = worker["workerid"] if worker else "main"
    with Services(install=True, lender=Path(lender), namespace=namespace) as services:
        yield services


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(wake_up=False)


@pytest.fixture(params=ASYNC_DRIVERS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """For writers: a new database for every driver, with transactions that can have savepoints."""
    made = await engine_with_outbox(request.param, request, tmp_path)
    if request.param.startswith("sqlite"):
        transactional_sqlite(made)
        await made.dispose()
    yield made
    await close(made)


@pytest.fixture(params=["postgresql+asyncpg", "sqlite+aiosqlite"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """For relays: a new database for every kind of store."""
    made = await engine_with_outbox(request.param, request, tmp_path)
    yield made
    await close(made)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, and what is run without measuring coverage."""
    for item in items:
        if _needs_server(item):
            item.add_marker(pytest.mark.server)
        if not _is_measured(item):
            item.add_marker(pytest.mark.no_cover)


def _is_measured(item: pytest.Item) -> bool:
    """Whether coverage is measured, which doubles the time of a test and more."""
    is_random = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return item.path.relative_to(_TESTS).parts[0] in _MEASURED and not is_random


def _needs_server(item: pytest.Item) -> bool:
    if "services" in getattr(item, "fixturenames", ()):
        return True
    # A fixture that has a parameter for each database asks for `services` only with PostgreSQL.
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(value, str) and value.startswith("postgresql") for value in values)


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
