"""What is searched: the protocol as it is, and what it would be with one part left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One search. `expected` is "holds", the promise that must break, or the possible effects."""

    name: str
    about: str
    expected: str = "holds"
    file: str = "lanes.pml"
    switches: dict[str, int] = field(default_factory=dict)
    long: bool = False
    """Takes more than a second or two; left out of the tests."""
    endless: bool = False
    """Look for runs that go on for ever, not only for broken promises."""


def _lanes(name: str, about: str, expected: str = "holds", /, **switches: int) -> Variant:
    flags = {key: bool(switches.pop(key, 0)) for key in ("long", "endless")}
    return Variant(name=name, about=about, expected=expected, switches=switches, **flags)


def _inbox(name: str, about: str, expected: str, /, **switches: int) -> Variant:
    return Variant(name=name, about=about, expected=expected, file="inbox.pml", switches=switches)


_ONE: Final = {"AGGREGATES": 1, "LANES": 1}
_FLOOR: Final = {"LANES": 1, "RETRIES": 1, "PARK": 1, "PERSONS": 1}

VARIANTS: Final = [
    _lanes("A", "one aggregate of 3 events, 4 faults", EVENTS=3, FAULTS=4, **_ONE, long=1),
    _lanes("A1", "as A, smaller; no run goes on for ever", EVENTS=2, **_ONE, endless=1),
    _lanes("A2", "2 aggregates of 2 events in 2 lanes, 3 faults", FAULTS=3, long=1),
    _lanes("A3", "2 aggregates of 3 events in 2 lanes, 1 fault", EVENTS=6, FAULTS=1, long=1),
    _lanes("A4", "3 relays", RELAYS=3, EVENTS=2, FAULTS=3, **_ONE, long=1),
    _lanes("A5", "2 aggregates of 1 event in 2 lanes", EVENTS=2),
    _lanes("B", "no token, the sink refuses nothing", EVENTS=3, FAULTS=3, TOKEN=0, long=1),
    _lanes("C", "no token, and the sink refuses", "fence", EVENTS=2, TOKEN=0, RETRIES=1, **_ONE),
    _lanes("D", "the sink refuses", EVENTS=3, FAULTS=3, RETRIES=2, **_ONE, long=1),
    _lanes("D1", "as D, smaller", EVENTS=2, RETRIES=2, FAULTS=1, **_ONE),
    _lanes("D2", "as D, 2 aggregates in 2 lanes", FAULTS=1, RETRIES=1, long=1),
    _lanes(
        *("D3", "parked behind a failed event, a person retries and discards; strict order"),
        **{"EVENTS": 3, "RETRIES": 1, "PARK": 1, "PERSONS": 2, "STRICT": 1, "long": 1, **_ONE},
    ),
    _lanes(
        *("D4", "going on behind a failed event that a stale relay brings later", "order"),
        **{"EVENTS": 2, "RETRIES": 1, "STRICT": 1, **_ONE},
    ),
    _lanes(
        "E", "rows are claimed, not lanes", "order", EVENTS=2, FAULTS=0, CLAIM=1, TOKEN=0, **_ONE
    ),
    _lanes("F", "settled before it is published", "loss", EVENTS=1, SETTLE_FIRST=1, **_ONE),
    _lanes("G", "claimed behind a cursor", "drains", EVENTS=2, FAULTS=0, CLAIM=2, LANES=1),
    _lanes("H1", "producers do not serialise", "order", EVENTS=2, FAULTS=0, UNSERIALISED=1, **_ONE),
    _lanes("H2", "late commits of other aggregates, batches of 4", WINDOW=4, long=1),
    _lanes("floor", "a floor alone", "order", EVENTS=3, FAULTS=0, LANES=1, FLOOR=1),
    _lanes("floor 1", "a floor with the probe", FAULTS=2, LANES=1, FLOOR=2, long=1),
    _lanes("floor 2", "the probe, parked events, a person", FAULTS=1, FLOOR=2, **_FLOOR, long=1),
    _lanes("floor 3", "as floor 2, smaller", EVENTS=3, FAULTS=0, FLOOR=2, **_FLOOR),
    _lanes("floor 4", "a probe that trusts failed events", "order", EVENTS=3, FLOOR=3, **_FLOOR),
    _lanes(
        "prune",
        "published rows are deleted, some are rolled back",
        EVENTS=3,
        FORGET=1,
        ROLLBACKS=1,
        long=1,
    ),
    _lanes("prune 1", "as prune, smaller", EVENTS=2, FORGET=1, ROLLBACKS=1, FAULTS=1),
    _lanes("prune 2", "any row is deleted", "loss", EVENTS=2, FAULTS=0, FORGET=2),
    _inbox("inbox 1", "check, handle, mark", "1, more", WRAPPER=1),
    _inbox("inbox 2", "check, handle, mark; no crash", "1, more", WRAPPER=1, CRASHES=0),
    _inbox("inbox 3", "mark, handle", "0, 1", WRAPPER=2),
    _inbox("inbox 4", "acknowledge, then one transaction", "0, 1", WRAPPER=3),
    _inbox("inbox 5", "one transaction, then acknowledge", "1", WRAPPER=4),
    _inbox("inbox 6", "the same, marks pruned too early", "1, more", WRAPPER=4, PRUNE=1),
]
