"""Side by side: every case runs in every round, and the medians are compared as ratios."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case: its median rate, and that rate as a ratio to each yardstick."""

    case: str
    per_second: float
    spread: float
    """How far apart the middle half of the rounds lies, as a part of the median."""
    ratios: dict[str, float]


def compare(
    cases: dict[str, Callable[[], Any]], *, beside: list[str], rounds: int, seconds: float
) -> list[Row]:
    """Rates of plain functions; each round gives every case the same slice of time."""
    slices = {name: partial(_rate, call, seconds) for name, call in cases.items()}
    return interleave(slices, beside=beside, rounds=rounds)


def interleave(
    slices: Mapping[str, Callable[[], float]], *, beside: list[str], rounds: int
) -> list[Row]:
    """Run every slice in every round, each round beginning with another one."""
    rates: dict[str, list[float]] = {name: [] for name in slices}
    names = list(slices)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rates[name].append(slices[name]())
    return rows_of(rates, beside)


async def in_turn(
    cases: Mapping[str, Callable[[], Awaitable[float]]],
    *,
    rounds: int,
    before: Callable[[], Awaitable[object]] | None = None,
) -> dict[str, list[float]]:
    """The rates of every case in every round, after one round that warms up."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            if before:
                await before()
            rate = await case()
            if number:
                rates[name].append(rate)
    return rates


def rows_of(rates: dict[str, list[float]], beside: list[str]) -> list[Row]:
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return [
        Row(
            case=name,
            per_second=rate,
            spread=_spread(rates[name]) / rate,
            ratios={other: rate / medians[other] for other in beside if other != name},
        )
        for name, rate in medians.items()
    ]


def _spread(found: list[float]) -> float:
    if len(found) < 2:
        return 0.0
    low, _, high = statistics.quantiles(found, n=4)
    return high - low


def _rate(call: Callable[[], Any], seconds: float) -> float:
    count, step, started = 0, 64, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        for _ in range(step):
            call()
        count += step
    return count / spent


def show(title: str, rows: list[Row]) -> None:
    others = sorted({name for row in rows for name in row.ratios})
    print(f"\n{title}")
    print(
        f"  {'case':<42}{'per second':>14}{'spread':>9}"
        + "".join(f"{'to ' + o:>30}" for o in others)
    )
    for row in rows:
        ratios = "".join(f"{row.ratios.get(o, 1.0):>30.2f}" for o in others)
        print(f"  {row.case:<42}{row.per_second:>14,.0f}{row.spread:>9.0%}{ratios}")


def save(part: str, tables: dict[str, list[Row]], settings: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    report = {
        "part": part,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "settings": settings,
        "tables": {
            title: [{**asdict(row), "per_second": round(row.per_second)} for row in rows]
            for title, rows in tables.items()
        },
    }
    (RESULTS / f"{part}.json").write_text(json.dumps(report, indent=1) + "\n")
