"""Every store of this library keeps all promises of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.testing.store_suite import StoreHarness, StoreSuite
from tests.support.conformance.store_harnesses import MemoryHarness, SqlHarness
from tests.support.databases import engine_with_outbox


class _SqlStore(StoreSuite):
    driver: str

    @pytest.fixture
    async def store_harness(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[StoreHarness]:
        engine = await engine_with_outbox(self.driver, request, tmp_path)
        yield SqlHarness(engine)
        await engine.dispose()


@pytest.mark.server
class TestPostgresOutbox(_SqlStore):
    driver = "postgresql+asyncpg"


class TestSqliteOutbox(_SqlStore):
    driver = "sqlite+aiosqlite"


class TestMemoryOutbox(StoreSuite):
    @pytest.fixture
    def store_harness(self) -> StoreHarness:
        return MemoryHarness()
