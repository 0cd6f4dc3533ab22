"""A short form of the benchmark with NATS: it runs, and compares what it says it compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import jetstream, measure
from outrider.testing.services import Services


def test_nats_benchmark_compares_side_by_side(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)

    tables = jetstream.run(rounds=1, count=1_000, services=services)

    ours = tables["to NATS"][-1]
    assert ours.case == jetstream.OURS
    assert set(ours.ratios) == {jetstream.BARE_NATS, jetstream.NATS_PIPELINED}
    assert (tmp_path / "nats.json").exists()
