"""Names become identifiers: what could hurt is refused before any query is made."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from outrider import DomainEvent, Outbox, SqlOutboxStore, open_engine
from outrider.errors import ConfigurationError
from outrider.store.schema import migrate as schema
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.tables import OutboxTables

FIELDS = ["table", "prefix", "processed", "schema", "channel"]
HOSTILE = [
    'outbox"; DROP TABLE users; --',
    "outbox;",
    "out'box",
    "out box",
    "outbox\n",
    "outbox\x00",
    "public.outbox",
    "Outbox",
    "OUTBOX",
    "1outbox",
    "öutbox",
    "x" * 70,
    "{version}",
    "%s",
]
NEAR_MISSES = st.text(alphabet=string.ascii_letters + string.digits + "_\"';.- {}%\n", max_size=70)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_refused(field: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="use 1 to 63 lower-case letters"):
        OutboxNames(**{field: name})


@pytest.mark.parametrize("field", ["table", "processed", "schema", "channel"])
@pytest.mark.parametrize("name", ["", 5, b"outbox"])
def test_what_is_no_name_at_all_is_refused(field: str, name: object) -> None:
    with pytest.raises(ConfigurationError):
        OutboxNames(**{field: name})  # type: ignore[arg-type]


@settings(max_examples=1000)
@given(st.text() | NEAR_MISSES, st.sampled_from(["table", "processed", "schema"]))
def test_random_string_is_refused_unless_it_is_plain(name: str, field: str) -> None:
    assume(not re.fullmatch("[a-z_][a-z0-9_]{0,62}", name))

    with pytest.raises(ConfigurationError):
        OutboxNames(**{field: name})


@settings(max_examples=200)
@given(st.from_regex("[a-z_][a-z0-9_]{0,40}", fullmatch=True))
def test_accepted_name_appears_only_in_quotes(name: str) -> None:
    # given
    names = OutboxNames(table=f"{name}_q", schema=f"{name}_s")

    # when
    printed = "\n".join(schema.statements("postgresql", names))

    # then
    assert re.findall(rf'(?<!["\w]){name}_[qs]\b', printed) == []


@pytest.mark.fault("D14")
def test_name_is_refused_when_only_a_derived_one_is_too_long() -> None:
    with pytest.raises(ConfigurationError, match="aggregate_index"):
        OutboxNames(table="x" * 60)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ConfigurationError, match="processed: .*channel: .*schema: "):
        OutboxNames(processed="B", channel="C", schema="D")


def test_prefix_names_the_other_tables() -> None:
    names = OutboxNames(table="events", prefix="shop_").all

    assert (names["outbox"], names["lanes"], names["version"]) == (
        "events",
        "shop_lanes",
        "shop_schema",
    )


def test_placeholders_of_all_steps_are_known() -> None:
    for dialect in ("postgresql", "sqlite"):
        for since, to in ((0, schema.LATEST), (schema.LATEST, 0)):
            printed = "\n".join(schema.statements(dialect, since=since, to=to))

            assert not re.search(r"\{\w+\}", printed)


def test_versions_and_databases_that_are_unknown_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"version {schema.LATEST + 1}"):
        schema.statements("postgresql", to=schema.LATEST + 1)
    with pytest.raises(ConfigurationError, match="version -1"):
        schema.statements("postgresql", since=-1)
    with pytest.raises(ConfigurationError, match="mysql: the outbox needs postgresql or sqlite"):
        schema.statements("mysql")
    with pytest.raises(ConfigurationError, match="SQLite has none"):
        schema.statements("sqlite", OutboxNames(schema="app"))


NAMES = OutboxNames(table="outbox_events", prefix="shop_", processed="seen_events")
CURE = "outrider schema apply --table outbox_events --prefix shop_ --processed seen_events`"


def test_cure_names_the_tables_that_are_not_the_default() -> None:
    assert OutboxNames().cure() == "run `outrider schema apply`"
    assert OutboxNames(schema="shop").cure("check") == "run `outrider schema check --schema shop`"
    assert CURE in NAMES.cure()


async def test_relay_without_tables_tells_the_cure_for_its_own_tables(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/shop.db")

    with pytest.raises(ConfigurationError, match=CURE):
        await SqlOutboxStore(engine, OutboxTables(NAMES)).open(lambda _payload: None)
    async with engine.connect() as connection:
        with pytest.raises(ConfigurationError, match=CURE):
            await connection.run_sync(schema.refuse_tables, NAMES)
    assert CURE in (await schema.check(engine, NAMES))[0]
    await engine.dispose()


def test_recording_without_tables_tells_the_cure_beside_the_error() -> None:
    outbox = Outbox(tables=OutboxTables(NAMES), wake_up=False)

    def record() -> None:
        with create_engine("sqlite://").begin() as connection:
            outbox.record(connection, DomainEvent("order.placed", "order", 1, {}))

    with pytest.raises(OperationalError, match=f"no such table: outbox_events; run `{CURE}"):
        record()
