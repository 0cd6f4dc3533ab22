"""A short form of the benchmarks: they run, and compare what they say they compare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import codec, measure
from bench.__main__ import main


def test_codec_benchmark_compares_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)

    tables = codec.run(rounds=1, seconds=0.001)

    ours = tables["small event → JSON"][-1]
    assert ours.case == "serialize_event"
    assert set(ours.ratios) == {"json.dumps(asdict)", "bare msgspec"}
    assert json.loads((tmp_path / "codec.json").read_text())["part"] == "codec"


def test_medians_are_compared() -> None:
    rows = measure.rows_of({"a": [1, 100, 2], "b": [4, 4, 1]}, beside=["a"])

    assert [row.per_second for row in rows] == [2, 4]
    assert rows[1].ratios == {"a": 2.0}


def test_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cofec"]) == 2
    assert "no such part: cofec" in capsys.readouterr().out
