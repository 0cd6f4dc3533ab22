"""Benchmarks in short form, and pages that quote what the benchmarks have recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import codec, drain, measure, peers, report
from bench.__main__ import PARTS, main
from bench.figures import FIGURES, Figure, NotRecorded, Rate, Ratio, report_of


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


def test_arrivals_are_judged_by_order_loss_and_repetition() -> None:
    in_order = [(0, 0), (1, 1), (0, 2)]
    with_faults = [(0, 4), (0, 2), (1, 1), (1, 1), (0, 6)]

    assert peers.judge(in_order, 3) == {"late": 0, "lost": 0, "twice": 0}
    assert peers.judge(with_faults, 7) == {"late": 1, "lost": 3, "twice": 1}


def test_peer_that_cannot_be_had_says_why() -> None:
    nobody = peers.Peer(name="nobody", requirements=("nobody==1",), python=(9, 9))

    with pytest.raises(peers.CannotRun, match=r"needs Python 9\.9"):
        peers.interpreter(nobody)


def test_drained_slices_are_compared_by_quarter() -> None:
    slices = [{"per_second": rate} for rate in (1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0)]

    quarters = drain.quarters(slices)

    assert list(quarters.values()) == [[1, 1], [2, 2], [3, 3], [4, 4, 4]]


def test_report_fills_its_blocks_and_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    rows = measure.rows_of({"by <hand>": [4.0], "outrider": [2.0]}, beside=["by <hand>"])
    settings = {
        "rounds": 1,
        "failing_of": 10,
        "order": {"outrider": {"late": 0, "lost": 0}},
        "slices": {"to nowhere": [{"seconds": 1.0, "per_second": 5, "megabytes": 7.0}]},
        "series": {"free": [1, 2], "pinned": [2, 1]},
        "latency": {"commit to consumer": {"p50 ms": 2.2}},
    }
    measure.save("here", {"a table": rows}, settings)
    page = "Words.\n<!-- bench: here -->\nold\n<!-- end -->\n<!-- bench: gone -->\n<!-- end -->\n"

    filled = report.fill(page, tmp_path / "images")

    assert filled.startswith("Words.\n")
    assert "old" not in filled
    assert "| outrider | 2 | 0% | 0.50 |" in filled
    assert "| outrider | 0 | 0 |" in filled
    assert "No run is recorded yet: `make bench PART=gone`." in filled
    assert report.fill(filled, tmp_path / "images") == filled
    pictures = re.findall(r"\(images/(.+?)\)", filled)
    assert len(pictures) == 5
    for name in pictures:
        ET.fromstring((tmp_path / "images" / name).read_text())  # noqa: S314 - our own


@pytest.mark.parametrize(
    "path", report.PAGES, ids=lambda path: path.relative_to(report.ROOT).as_posix()
)
def test_page_shows_the_recorded_results(path: Path, tmp_path: Path) -> None:
    page = path.read_text()

    assert report.fill(page, tmp_path) == page, "run `make plots`"


def test_page_that_is_behind_the_results_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("p50 <!-- figure: relay.latency.p50 -->99.9<!-- /figure --> ms\n")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "PAGES", [page])

    assert report.main(["--check"]) == 1
    assert "page.md is behind" in capsys.readouterr().out
    assert "99.9" in page.read_text()

    assert report.main([]) == 0
    assert "99.9" not in page.read_text()
    assert report.main(["--check"]) == 0


def test_figure_without_a_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="relay.speed"):
        report.fill("<!-- figure: relay.speed -->1<!-- /figure -->", tmp_path)


@pytest.mark.parametrize(
    "path", report.PAGES, ids=lambda path: path.relative_to(report.ROOT).as_posix()
)
def test_measured_figures_are_not_typed_by_hand(path: Path) -> None:
    typed = re.sub(r"<!-- (bench|figures): .*?<!-- end -->", "", path.read_text(), flags=re.DOTALL)
    typed = re.sub(r"<!-- figure: .*?<!-- /figure -->", "", typed)
    typed = re.sub(r"```.*?```|`[^`]*`|\[[^\]]*\]\([^)]*\)", "", typed, flags=re.DOTALL)

    assert re.findall(r"p(?:50|99)\s+[\d.]+|[\d,]+ events/s\b|\bratio \d", typed) == []


def test_figures_are_recorded() -> None:
    """Only relays with default settings to Kafka, NATS and Redis may wait for their first run."""
    missing = [name for name, figure in FIGURES.items() if not recorded(figure)]

    assert [name for name in missing if name.split(".")[0] not in ("kafka", "nats", "redis")] == []
    assert [name for name in missing if "tuned" in name] == []


def recorded(figure: Figure) -> bool:
    try:
        return bool(figure.text())
    except NotRecorded:
        return False


def test_figures_quote_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    rows = measure.rows_of({"by hand": [4.0], "outrider": [1_234.0]}, beside=["by hand"])
    measure.save("here", {"a table": rows}, {})

    assert Rate("here", "a table", "outrider").text() == "1,200"
    assert Ratio("here", "a table", "outrider", "by hand").text() == "308.5"
    assert Ratio("here", "a table", "by hand", "outrider").text() == "0.00"
    assert "| outrider | 1,234 | 0% | 308.50 |" in report._block("here", tmp_path)
    with pytest.raises(NotRecorded, match="PART=here"):
        Rate("here", "a table", "somebody else").text()


def test_peer_that_pages_name_is_the_fastest_that_keeps_order() -> None:
    found = report_of("peers")
    order = found["settings"]["order"]
    safe = [name for name, seen in order.items() if seen["late"] == seen["lost"] == 0]
    libraries = {name.partition(",")[0] for name in safe} - {"outrider"}
    libraries = {name for name in libraries if {f"{name}, tuned", f"{name}, default"} <= {*safe}}

    for rows in found["tables"].values():
        rates = {row["case"]: row["per_second"] for row in rows}
        fastest = max(libraries, key=lambda name: rates[f"{name}, tuned"])
        assert fastest == "txoutbox"


def test_every_part_is_on_the_page() -> None:
    page = (report.DOCS / report.PAGE).read_text()
    raw_limits = {"rabbitmq"}

    assert {name for name in PARTS if f"<!-- bench: {name} -->" not in page} == raw_limits


def test_parts_take_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int]] = []
    monkeypatch.setitem(PARTS, "relay", lambda **options: asked.append(options))

    assert main(["relay", "count=100", "rounds=1"]) == 0
    assert asked == [{"count": 100, "rounds": 1}]
