"""A short form of the benchmark of Redis: it runs, and compares what it says it compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import measure, redis_streams
from outrider.testing.services import Services


def test_redis_benchmark_compares_side_by_side(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)

    tables = redis_streams.run(rounds=1, count=1_000, services=services)

    assert len(tables) == 2
    for rows in tables.values():
        assert rows[-1].case == redis_streams.OURS
        assert redis_streams.BARE_REDIS in rows[-1].ratios
    assert (tmp_path / "redis.json").exists()
