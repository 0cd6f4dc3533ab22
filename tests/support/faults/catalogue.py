"""Every kind of fault by its id, and the lines of the scoreboard with their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class Kind(NamedTuple):
    words: str
    line: str
    """The line of the scoreboard where a failed test of this kind counts."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """What is counted, and the target for each case."""

    words: str
    target: str
    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    cases: int = 1


# Whatever the line, these figures must be 0.
NEVER: Final = frozenset(
    (
        *("lost", "unexpected", "reordered", "misnumbered", "stuck", "failed", "retried"),
        *("stale", "twice", "never", "leaked", "hits", "passed", "rows"),
    )
)

KINDS: Final[dict[str, Kind]] = {
    "R1": Kind("relay killed between publish and settle", "S-1"),
    "R2": Kind("relay killed between claim and publish", "S-1"),
    "R3": Kind("settle sent, its answer lost", "S-1"),
    "R4": Kind("relay stopped beyond its lease", "S-2"),
    "R5": Kind("relay stopped between looking at its lease and publishing", "S-2"),
    "R6": Kind("two relays of one name", "S-2"),
    "R7": Kind("relay asked to end in mid-batch, or twice", "S-10"),
    "R8": Kind("renewal starved by a blocked loop", "S-2"),
    "R9": Kind("background task dies", "S-1"),
    "R10": Kind("memory or file descriptors used up", "S-1"),
    "R11": Kind("relays come and go", "S-1"),
    "D1": Kind("backend killed", "S-3"),
    "D2": Kind("postmaster killed, stopped, away", "S-3"),
    "D3": Kind("failover that loses the last commits", "S-3"),
    "D4": Kind("restored from a dump", "S-3"),
    "D5": Kind("database swallows bytes and answers nothing", "S-5"),
    "D6": Kind("connection reset during COMMIT", "S-5"),
    "D7": Kind("session terminated or timed out by the server", "S-3"),
    "D8": Kind("serialization failure, deadlock, lock timeout", "S-3"),
    "D9": Kind("rollback, also of savepoints, after record", "S-1"),
    "D10": Kind("transaction held open with an early position", "S-1"),
    "D11": Kind("forgotten transaction pins the vacuum horizon", "S-12"),
    "D12": Kind("LISTEN connection silently dead", "S-5"),
    "D13": Kind("notification queue full, listener stuck", "S-3"),
    "D14": Kind("notification or channel name too long", "S-3"),
    "D15": Kind("transaction pooler in between", "S-3"),
    "D16": Kind("disk full", "S-3"),
    "D17": Kind("no connection left, password changed, certificate wrong", "S-3"),
    "D18": Kind("database read-only", "S-3"),
    "D19": Kind("schema older or newer than the code", "S-13"),
    "D20": Kind("SQLite busy, killed, shared by processes", "S-1"),
    "B1": Kind("broker down for long", "S-11"),
    "B2": Kind("broker killed in mid-batch", "S-4"),
    "B3": Kind("broker frozen", "S-4"),
    "B4": Kind("broker blocks publishers", "S-4"),
    "B5": Kind("broker says no to one event", "S-4"),
    "B6": Kind("event that leads to no queue", "S-4"),
    "B7": Kind("exchange, stream or topic missing or deleted", "S-4"),
    "B8": Kind("message too large", "S-4"),
    "B9": Kind("connection to the broker black-holed, cut, reset, slow", "S-5"),
    "B10": Kind("answer of a cancelled call left in the socket", "S-5"),
    "B11": Kind("publish hangs while reconnecting", "S-5"),
    "B12": Kind("Redis full, evicting, trimmed, failed over", "S-4"),
    "B13": Kind("NATS without a stream, or with one that discards", "S-4"),
    "B14": Kind("Kafka leader, replicas, partitions change", "S-4"),
    "B15": Kind("credentials or permissions revoked", "S-4"),
    "B16": Kind("sink accepts slowly", "S-5"),
    "B17": Kind("confirms out of order or cumulative", "S-4"),
    "B18": Kind("sink lost what it had acknowledged", "S-4"),
    "E1": Kind("event refused for ever", "S-4"),
    "E2": Kind("event that kills the process", "S-1"),
    "E3": Kind("unknown type or newer version", "S-9"),
    "E4": Kind("NaN or infinity", "S-9"),
    "E5": Kind("NUL character", "S-9"),
    "E6": Kind("lone surrogate", "S-9"),
    "E7": Kind("huge integer", "S-9"),
    "E8": Kind("deep nesting", "S-9"),
    "E9": Kind("JSON rewritten by the database", "S-9"),
    "E10": Kind("payload too large", "S-9"),
    "E11": Kind("handler hangs", "S-6"),
    "E12": Kind("handler swallows its cancellation", "S-6"),
    "E13": Kind("handler raises CancelledError", "S-6"),
    "E14": Kind("handler raises SystemExit or the like", "S-6"),
    "E15": Kind("handler ends the session it was given", "S-6"),
    "E16": Kind("cancellation in mid-query", "S-7"),
    "T1": Kind("clock jumps", "S-8"),
    "T2": Kind("time without a zone", "S-9"),
    "T3": Kind("now() stands still inside a transaction", "S-8"),
    "Z1": Kind("ten million pending", "S-12"),
    "Z2": Kind("retention of ten million rows", "S-12"),
    "Z3": Kind("bloat", "S-12"),
    "Z4": Kind("one aggregate gets all, or a million get one each", "S-12"),
    "Z5": Kind("thousands of events in one transaction", "S-12"),
}

LINES: Final[dict[str, Line]] = {
    "S-1": Line(
        words="relays killed at random and at each step, per store and sink",
        target="500 each: nothing lost, unexpected, reordered, stuck; duplicates within the bound",
        at_least={"faults": 500},
        cases=8,
    ),
    "S-2": Line(
        words="relays stopped beyond their lease",
        target="200: no row changed by a stale token, 50 settles rejected",
        at_least={"faults": 200, "rejected": 50},
    ),
    "S-3": Line(
        words="database killed, stopped, sessions terminated",
        target="100 + 300: as S-1, first progress within 15 s",
        at_least={"faults": 100, "sessions": 300},
        at_most={"first_progress": 15},
    ),
    "S-4": Line(
        words="broker killed, stopped, frozen, per broker",
        target="30 each: as S-1, no attempt used up",
        at_least={"faults": 30},
        cases=4,
    ),
    "S-5": Line(
        words="network faults",
        target="500: as S-1, no call beyond its deadline",
        at_least={"faults": 500},
    ),
    "S-6": Line(
        words="consumers killed, a tenth of the messages twice",
        target="500 kills, 100,000 messages: every effect once",
        at_least={"faults": 500, "events": 100_000},
    ),
    "S-7": Line(
        words="random cancellations",
        target="10,000: no connection, lock or task leaked",
        at_least={"faults": 10_000},
    ),
    "S-8": Line(words="clock jumps", target="50: as S-1", at_least={"faults": 50}),
    "S-9": Line(
        words="bad inputs",
        target="all refused when recorded, by the name of the field; no row",
        at_least={"faults": 10},
        cases=2,
    ),
    "S-10": Line(
        words="relays ended in mid-batch",
        target="200: no duplicate; the successor need not wait",
        at_least={"faults": 200},
        at_most={"duplicates": 0},
    ),
    "S-11": Line(
        words="outage of ten minutes, clock compressed",
        target="no event failed, drains by itself",
        at_least={"seconds": 600},
    ),
    "S-12": Line(
        words="ten million pending, pruned, horizon pinned",
        target="claims within 20 ms; memory and rate: `make bench PART=drain`, `PART=horizon`",
        at_most={"claim_ms": 20},
    ),
    "S-13": Line(words="two releases at once", target="nothing lost or reordered"),
    "S-14": Line(words="deliberate bugs", target="17 of 17 caught", at_least={"caught": 17}),
    "S-15": Line(words="model of the protocol", target="all variants as expected"),
    "S-16": Line(words="canaries", target="0 hits"),
    "S-17": Line(
        words="kinds of fault exercised",
        target="70 of 73, and everything that must sometimes happen did",
        at_least={"kinds": 70},
    ),
}

# Each must happen at least once in a full run; otherwise the run had too few faults.
SOMETIMES: Final = (
    "take-over",
    "settle rejected",
    "duplicate delivered",
    "unknown outcome",
    "renewal lost",
    "late commit found",
    "stopped before the lease ended",
)
