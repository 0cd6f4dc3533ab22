"""A short form of the producer benchmark: every case runs, beside what it says it runs beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import measure, producer
from outrider.testing.services import Services


def test_producer_benchmark_compares_side_by_side(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(measure, "RESULTS", tmp_path)

    # when
    tables = producer.run(rounds=1, seconds=0.5, services=services)

    # then
    for rows in tables.values():
        assert all(row.per_second > 0 for row in rows)
        assert set(rows[2].ratios) == {producer.ALONE, producer.BY_HAND}
    report = json.loads((tmp_path / "producer.json").read_text())
    assert set(report["tables"]) == set(tables)
    notifications = report["settings"]["notifications"]
    assert notifications[producer.ONE_EVENT] > 0, "the headline is measured with default settings"
    assert notifications[producer.NOTIFY_INSIDE] > 0
    assert notifications[producer.ONE_EVENT_NO_WAKE_UP] == 0
