"""The catalogue: what it says of event types, and which changes it calls breaking."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import new_class
from typing import Any, Literal

import pytest

from outrider import DecodeError, DomainEvent, serialize_event
from outrider.events.catalog import CatalogChanges, asyncapi, catalog, compare
from outrider.events.codec import EVENT_TYPES, UNREADABLE
from tests.support.shop import Everything, OrderPlaced

NAMES = ("order.placed", "thing.happened", "tree.planted")


@pytest.fixture
def before() -> dict[str, Any]:
    return catalog([EVENT_TYPES.named(name) for name in NAMES])


def test_every_type_has_version_aggregate_and_schema(before: dict[str, Any]) -> None:
    order = before[OrderPlaced.event_type]

    assert set(before) == set(NAMES)
    assert (order["version"], order["aggregate"]) == (1, "order")
    assert order["schema"]["properties"]["total"] == {"type": "string", "format": "decimal"}
    assert "description" not in order["schema"]
    assert json.dumps(before[Everything.event_type])


def test_nothing_breaks_when_nothing_changed(before: dict[str, Any]) -> None:
    assert compare(before, deepcopy(before)) == CatalogChanges()


def removed_type(now: dict[str, Any]) -> None:
    del now["order.placed"]


def removed_field(now: dict[str, Any]) -> None:
    del now["order.placed"]["schema"]["properties"]["total"]


def new_required_field(now: dict[str, Any]) -> None:
    now["order.placed"]["schema"]["properties"]["tax"] = {"type": "string"}
    now["order.placed"]["schema"]["required"].append("tax")


def other_type(now: dict[str, Any]) -> None:
    now["order.placed"]["schema"]["properties"]["total"] = {"type": "number"}


def older_version(now: dict[str, Any]) -> None:
    now["order.placed"]["version"] = 0


def newer_without_upcast(now: dict[str, Any]) -> None:
    now["order.placed"].update(version=2, upcasts_from=2)


def other_aggregate(now: dict[str, Any]) -> None:
    now["order.placed"]["aggregate"] = "basket"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (removed_type, "is gone"),
        (removed_field, "field total is gone"),
        (new_required_field, "field tax is new and has no default"),
        (other_type, "field total was string (decimal) and is number"),
        (older_version, "went back from version 1 to 0"),
        (newer_without_upcast, "nothing reads version 1"),
        (other_aggregate, "its aggregate was order and is basket"),
    ],
)
def test_breaking_change_is_named(before: dict[str, Any], change: Any, said: str) -> None:
    after = deepcopy(before)
    change(after)

    [problem] = compare(before, after).breaks

    assert problem.startswith("order.placed: ")
    assert said in problem


def test_field_with_a_default_and_an_upcast_version_break_nothing(before: dict[str, Any]) -> None:
    after = deepcopy(before)
    after["order.placed"]["schema"]["properties"]["note"] = {"type": "string", "default": ""}
    after["thing.happened"].update(version=2, upcasts_from=1)

    assert compare(before, after) == CatalogChanges(
        consumers_first=["thing.happened: consumers that know version 1 refuse version 2"]
    )


def test_lost_enum_value_breaks(before: dict[str, Any]) -> None:
    after = deepcopy(before)
    defs = after["thing.happened"]["schema"]["$defs"]
    enum = next(part for part in defs.values() if "enum" in part)
    lost = enum["enum"].pop()

    assert any(f"no longer takes {lost}" in problem for problem in compare(before, after).breaks)


PART = make_dataclass("Part", [("sku", str, "a")], frozen=True)
PAINTED_PART = make_dataclass("Part", [("sku", str, "a"), ("colour", str, "red")], frozen=True)
# Fields of the old and of the new class, each with its default; an example value if it has none.
Fields = dict[str, tuple[Any, Any]]
RELEASES: dict[str, tuple[Fields, Fields]] = {
    "nothing": ({}, {}),
    "optional field added": ({}, {"note": (str, "fragile")}),
    "optional field removed": ({"note": (str, "fragile")}, {}),
    "required field added": ({}, {"note": (str, ...)}),
    "required field removed": ({"note": (str, ...)}, {}),
    "nested field added": ({"lid": (PART, PART())}, {"lid": (PAINTED_PART, PAINTED_PART())}),
    "nested field removed": ({"lid": (PAINTED_PART, PAINTED_PART())}, {"lid": (PART, PART())}),
    "wider type": ({"count": (int, 1)}, {"count": (int | None, None)}),
    "narrower type": ({"count": (int | None, None)}, {"count": (int, 1)}),
    "value added": ({"mode": (Literal["a"], "a")}, {"mode": (Literal["a", "b"], "b")}),
    "value removed": ({"mode": (Literal["a", "b"], "b")}, {"mode": (Literal["a"], "a")}),
}


def declare(event_type: str, fields: Fields, *, strict: bool) -> type[DomainEvent]:
    def fill(namespace: dict[str, Any]) -> None:
        annotations = {name: kind for name, (kind, _) in fields.items()}
        namespace["__annotations__"] = {"box_id": int, **annotations}
        namespace.update({name: default for name, (_, default) in fields.items()})
        for name in [name for name, (_, default) in fields.items() if default is ...]:
            del namespace[name]

    keywords = {"type": event_type, "aggregate": "box", "strict": strict}
    made: type[DomainEvent] = new_class("Box", (DomainEvent,), keywords, fill)
    made.__qualname__ = event_type
    return dataclass(frozen=True, kw_only=True)(made)


def reads(reader: type[DomainEvent], writer: type[DomainEvent], fields: Fields) -> bool:
    values = {name: "text" for name, (_, default) in fields.items() if default is ...}
    try:
        reader.codec.decode(serialize_event(writer(box_id=1, **values)))  # type: ignore[call-arg]
    except (DecodeError, *UNREADABLE):
        return False
    return True


@pytest.mark.parametrize("strict", [False, True], ids=["tolerant", "strict"])
@pytest.mark.parametrize("release", RELEASES)
def test_check_says_of_tolerant_and_strict_readers_what_they_do(
    release: str, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: both classes, and the registry as it was before
    monkeypatch.setattr(EVENT_TYPES, "_by_name", dict(EVENT_TYPES._by_name))
    old_fields, new_fields = RELEASES[release]
    old = declare("box.old", old_fields, strict=strict)
    new = declare("box.new", new_fields, strict=strict)
    entries = catalog([EVENT_TYPES.named(one.event_type) for one in (old, new)])

    # when
    changes = compare({"box": entries["box.old"]}, {"box": entries["box.new"]})

    # then
    rows_are_read, consumers_go_on = reads(new, old, old_fields), reads(old, new, new_fields)
    refused = bool(changes.breaks or changes.consumers_first)
    assert refused is not (rows_are_read and consumers_go_on)
    assert rows_are_read or changes.breaks
    assert not changes.consumers_first or not consumers_go_on


def test_asyncapi_document_has_a_channel_and_a_message_per_type(before: dict[str, Any]) -> None:
    document = asyncapi(before, title="Shop")

    assert document["asyncapi"] == "3.0.0"
    assert {channel["address"] for channel in document["channels"].values()} == set(NAMES)
    assert document["components"]["messages"]["order_placed"]["name"] == "order.placed"


def outrider(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: this one knows event types of other tests too."""
    command = [sys.executable, "-m", "outrider", "catalog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_command_exits_with_1_when_something_breaks(tmp_path: Path) -> None:
    shown = outrider("show", "tests.support.shop")
    fine, broken = tmp_path / "fine.json", tmp_path / "broken.json"
    fine.write_text(shown.stdout)
    now = json.loads(shown.stdout)
    broken.write_text(json.dumps({**now, "order.lost": now["order.placed"]}))

    results = [
        outrider("check", "tests.support.shop", "--against", str(file)) for file in (fine, broken)
    ]

    assert [result.returncode for result in results] == [0, 1]
    assert results[0].stdout == "nothing breaks.\n"
    assert "order.lost: is gone" in results[1].stdout
    for nowhere in ("no.such.module", "", ".", "a b"):
        refused = outrider("show", nowhere)
        assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
