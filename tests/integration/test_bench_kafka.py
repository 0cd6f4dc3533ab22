"""A short form of Kafka's benchmark: it runs, and compares what it says it compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import kafka, measure
from outrider.testing.services import Services


def test_kafka_benchmark_compares_side_by_side(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)

    tables = kafka.run(rounds=1, count=1_000, services=services)

    ours = tables["to Kafka"][-1]
    assert ours.case == kafka.OURS
    assert set(ours.ratios) == {kafka.AIOKAFKA_SEND, kafka.BARE_KAFKA}
    assert (tmp_path / "kafka.json").exists()
