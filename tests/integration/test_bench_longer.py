"""Short forms of the benchmarks that take longer: they run, and compare what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import consume, drain, horizon, measure, peers, scaling
from outrider.testing.services import Services


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    return tmp_path


def test_consuming_is_compared_with_the_raw_client(services: Services) -> None:
    tables = consume.run(rounds=1, count=64, brokers=["redis"], services=services)

    ours = tables["from redis"][-1]
    assert ours.case == consume.CONSUMER_WITH_INBOX
    assert set(ours.ratios) == {consume.RAW_CLIENT, consume.INBOX_BY_HAND}


def test_relays_at_a_slow_broker_are_compared_with_one(services: Services) -> None:
    (rows,) = scaling.run(rounds=1, count=500, numbers=(1,), services=services).values()

    assert [row.case for row in rows] == ["1 relay"]


def test_pinned_horizon_is_compared_with_a_free_one(services: Services) -> None:
    tables = horizon.run(seconds=0.5, lot=100, services=services)

    assert [row.case for row in tables["last quarter"]] == [horizon.FREE, horizon.PINNED]
    assert horizon.FREE in tables["last quarter"][1].ratios


def test_drain_notes_rate_and_memory_of_each_slice(services: Services, results: Path) -> None:
    tables = drain.run(count=4_000, services=services)

    assert set(tables) == {"to nowhere", "to RabbitMQ"}
    slices = json.loads((results / "drain.json").read_text())["settings"]["slices"]["to nowhere"]
    assert slices[-1]["events"] == 4_000
    assert all(part["megabytes"] > 0 for part in slices)


def test_driver_delivers_everything_in_order_though_some_fail(
    services: Services, results: Path
) -> None:
    """Peers need a download; Outrider goes the same way through the same driver."""
    peers.run(
        rounds=1, count=200, failing_of=200, peers=(), variants=[peers.TUNED], services=services
    )

    report = json.loads((results / "peers.json").read_text())
    assert set(report["tables"]) == {"to nowhere", "to RabbitMQ"}
    assert report["settings"]["order"] == {"outrider, tuned": {"late": 0, "lost": 0, "twice": 0}}
