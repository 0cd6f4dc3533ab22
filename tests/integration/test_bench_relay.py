"""A short form of the relay's benchmark: it runs, and compares what it says it compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import measure, relay
from outrider.testing.services import Services


def test_relay_benchmark_compares_side_by_side(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)

    tables = relay.run(rounds=1, count=1_000, events=20, services=services)

    ours = tables["to RabbitMQ"][-1]
    assert ours.case == relay.OURS
    assert set(ours.ratios) == {relay.BARE_FRAMES, relay.ONE_BY_ONE}
    assert [row.case for row in tables["to nowhere"]] == [
        relay.BARE_NOOP,
        relay.OURS_NOOP_TUNED,
        relay.OURS_NOOP,
    ]
    assert (tmp_path / "relay.json").exists()
