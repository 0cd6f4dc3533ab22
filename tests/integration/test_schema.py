"""The tables come, grow and go by numbered steps, on real PostgreSQL and SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from outrider.errors import ConfigurationError
from outrider.store.schema import migrate as schema
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.tables import OutboxTables
from outrider.testing.services import Services
from tests.support.databases import DIALECTS, Database, fresh, fresh_postgres, insert

ALL_STEPS = list(range(1, schema.LATEST + 1))


@pytest.fixture(params=DIALECTS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh(request.param, request, tmp_path) as database:
        yield database


@pytest.fixture
def postgres(services: Services) -> Iterator[Database]:
    with fresh_postgres(services) as database:
        yield database


async def test_steps_make_the_tables_that_sqlalchemy_knows(database: Database) -> None:
    # given
    OutboxTables().metadata.create_all(database.engine())
    expected = database.picture()
    OutboxTables().metadata.drop_all(database.engine())
    assert database.picture() == {}

    # when
    applied = await schema.apply(database.async_engine())

    # then
    assert applied == ALL_STEPS
    assert database.picture() == expected


async def test_applying_again_changes_nothing(database: Database) -> None:
    # given
    engine = database.async_engine()
    await schema.create_all(engine)
    database.run(insert())

    # when
    applied = await schema.apply(engine)

    # then
    assert applied == []
    assert await schema.current_version(engine) == schema.LATEST
    assert database.run("SELECT count(*) FROM outbox") == [(1,)]


async def test_rows_survive_every_step_up_and_down(database: Database) -> None:
    # given
    engine = database.async_engine()
    assert await schema.current_version(engine) == 0
    await schema.apply(engine, to=1)
    database.run(insert())
    before = database.picture()

    # when
    applied = [await schema.apply(engine, to=number) for number in ALL_STEPS[1:]]

    # then
    assert applied == [[number] for number in ALL_STEPS[1:]]
    assert database.run("SELECT position, status, delivery_number FROM outbox") == [
        (1, "pending", None)
    ]
    assert await schema.check(engine) == []

    # when
    with database.engine().begin() as connection:
        back = schema.downgrade(connection, to=1)

    # then
    assert back == ALL_STEPS[:0:-1]
    assert database.picture() == before
    assert database.run("SELECT position, status FROM outbox") == [(1, "pending")]


async def test_going_down_to_nothing_leaves_nothing(database: Database) -> None:
    # given
    await schema.apply(database.async_engine())

    # when
    with database.engine().begin() as connection:
        schema.downgrade(connection)

    # then
    assert database.picture() == {}
    assert await schema.apply(database.async_engine()) == ALL_STEPS


async def test_apply_never_leads_back(database: Database) -> None:
    # given
    engine = database.async_engine()
    await schema.apply(engine)

    # when
    applied = await schema.apply(engine, to=1)

    # then
    assert applied == []
    assert await schema.current_version(engine) == schema.LATEST


async def test_downgrade_never_leads_on(database: Database) -> None:
    # given
    engine = database.async_engine()
    await schema.apply(engine, to=1)

    # when
    with database.engine().begin() as connection:
        back = schema.downgrade(connection, to=schema.LATEST)

    # then
    assert back == []
    assert await schema.current_version(engine) == 1


def test_plain_connection_does_the_same(database: Database) -> None:
    with database.engine().begin() as connection:
        assert schema.version(connection) == 0
        assert schema.upgrade(connection) == ALL_STEPS
        assert schema.version(connection) == schema.LATEST
        assert schema.problems(connection) == []


async def test_one_of_many_applies_and_the_others_find_it_done(database: Database) -> None:
    # given
    engines = [database.async_engine() for _ in range(6)]

    # when
    applied = await asyncio.gather(*(schema.apply(engine) for engine in engines))

    # then
    assert sorted(applied) == [[]] * 5 + [ALL_STEPS]


@pytest.mark.parametrize("isolation", ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
async def test_isolation_of_the_engine_does_not_spoil_the_lock(
    postgres: Database, isolation: str
) -> None:
    # given
    engines = [postgres.async_engine(isolation_level=isolation) for _ in range(6)]

    # when
    applied = await asyncio.gather(*(schema.apply(engine) for engine in engines))

    # then
    assert sorted(applied) == [[]] * 5 + [ALL_STEPS]


async def test_sqlite_engine_that_begins_by_itself_is_welcome(tmp_path: Path) -> None:
    # given: the recipe of SQLAlchemy's documentation for savepoints in SQLite
    engine = Database(f"sqlite:///{tmp_path / 'outbox.db'}").async_engine()

    @event.listens_for(engine.sync_engine, "connect")
    def leave_it_to_us(connection: object, _: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: object) -> None:
        connection.exec_driver_sql("BEGIN")  # type: ignore[attr-defined]

    # when
    applied = await schema.apply(engine)

    # then
    assert applied == ALL_STEPS
    assert await schema.check(engine) == []


async def test_failing_step_leaves_nothing_behind(database: Database) -> None:
    # given: something that has the name of one of our indexes
    database.run("CREATE TABLE outbox_failed (x integer)")
    before = database.picture()

    # when
    with pytest.raises(DBAPIError):
        await schema.apply(database.async_engine())

    # then
    assert set(database.picture()) == set(before)


@pytest.mark.parametrize("table", ["outbox", "processed_events"])
async def test_table_of_somebody_else_is_not_touched(database: Database, table: str) -> None:
    # given
    database.run(f"CREATE TABLE {table} (x integer)")

    # when, then
    cure = "(choose another name|--processed)"
    with pytest.raises(ConfigurationError, match=f"table {table} exists.*{cure}"):
        await schema.apply(database.async_engine())
    assert set(database.picture()) == {table}


@pytest.mark.fault("D19")
async def test_newer_tables_are_refused_by_name(database: Database) -> None:
    # given
    engine = database.async_engine()
    await schema.apply(engine)
    database.run("INSERT INTO outbox_schema (version) SELECT max(version) + 1 FROM outbox_schema")

    # when, then
    with pytest.raises(ConfigurationError, match=f"at version {schema.LATEST + 1}.*upgrade outri"):
        await schema.apply(engine)
    with database.engine().begin() as connection, pytest.raises(ConfigurationError):
        schema.downgrade(connection)
    assert "upgrade outrider" in (await schema.check(engine))[0]


@pytest.mark.parametrize("name", ["order", "user", "select", "table", "group"])
async def test_reserved_word_is_a_good_name(database: Database, name: str) -> None:
    # given
    names, engine = OutboxNames(table=name, processed="all"), database.async_engine()

    # when
    await schema.apply(engine, names)

    # then
    assert await schema.check(engine, names) == []
    database.run(insert(f'"{name}"'))
    with database.engine().begin() as connection:
        schema.downgrade(connection, names)
    assert database.picture() == {}


async def test_two_outboxes_live_side_by_side(database: Database) -> None:
    engine = database.async_engine()
    for names in (OutboxNames(), OutboxNames(table="audit", processed="audit_processed")):
        assert await schema.apply(engine, names) == ALL_STEPS
        assert await schema.check(engine, names) == []


async def test_schema_is_made_when_absent_and_nothing_goes_into_public(postgres: Database) -> None:
    # given
    names, engine = OutboxNames(schema="order"), postgres.async_engine()

    # when
    applied = await schema.apply(engine, names)

    # then
    assert applied == ALL_STEPS
    assert await schema.check(engine, names) == []
    assert postgres.picture("public") == {}
    assert "outbox" in postgres.picture("order")

    # when
    with postgres.engine().begin() as connection:
        schema.downgrade(connection, names)

    # then
    assert postgres.picture("order") == {}


async def test_existing_schema_needs_no_right_to_create_one(
    services: Services, postgres: Database
) -> None:
    # given
    role = postgres.url.rpartition("/")[2] + "_owner"
    postgres.run(f"CREATE ROLE {role}", f"CREATE SCHEMA app AUTHORIZATION {role}")
    engine = postgres.async_engine(connect_args={"server_settings": {"role": role}})

    # when
    applied = await schema.apply(engine, OutboxNames(schema="app"))

    # then
    assert applied == ALL_STEPS
    postgres.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_check_asks_for_apply_before_anything_else(database: Database) -> None:
    engine = database.async_engine()
    assert "the tables are missing; run `outrider schema apply`" in (await schema.check(engine))[0]

    await schema.apply(engine, to=1)
    assert await schema.check(engine) == [
        f"the tables are at version 1, this release needs {schema.LATEST}; "
        "run `outrider schema apply`"
    ]


DAMAGE = {
    "DROP TABLE outbox_lanes": "table outbox_lanes is missing; make it as",
    "DROP TABLE outbox": "table outbox is missing; make it as",
    "ALTER TABLE outbox DROP COLUMN last_error": "column outbox.last_error is missing; make it as",
    "DROP INDEX outbox_failed": (
        'index outbox_failed is missing; CREATE INDEX "outbox_failed" ON "outbox" ('
    ),
    "DROP INDEX processed_events_age": (
        "index processed_events_age is missing; "
        'CREATE INDEX "processed_events_age" ON "processed_events" (processed_at)'
    ),
}
POSTGRES_DAMAGE = {
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_aggregate'::regclass": (
        'index outbox_aggregate is INVALID; REINDEX INDEX CONCURRENTLY "outbox_aggregate"'
    ),
    "ALTER TABLE outbox ALTER COLUMN position SET CACHE 50": (
        "column outbox.position draws its numbers with cache 50, not 1; "
        'ALTER TABLE "outbox" ALTER COLUMN position SET CACHE 1'
    ),
    "ALTER TABLE outbox ALTER COLUMN position DROP IDENTITY": (
        "column outbox.position is not an identity; make it as"
    ),
}


@pytest.mark.parametrize("blow", DAMAGE)
async def test_check_names_damage_and_cure(database: Database, blow: str) -> None:
    # given
    engine = database.async_engine()
    await schema.apply(engine)
    assert await schema.check(engine) == []

    # when
    database.run(blow)

    # then
    (problem,) = await schema.check(engine)
    assert problem.startswith(DAMAGE[blow])


@pytest.mark.fault("D19")
@pytest.mark.parametrize("blow", POSTGRES_DAMAGE)
async def test_check_names_damage_that_only_postgres_knows(postgres: Database, blow: str) -> None:
    # given
    engine = postgres.async_engine()
    await schema.apply(engine)

    # when
    postgres.run(blow)

    # then
    (problem,) = await schema.check(engine)
    assert problem.startswith(POSTGRES_DAMAGE[blow])


async def test_cure_that_check_names_is_one(postgres: Database) -> None:
    # given
    names, engine = OutboxNames(schema="app", table="order"), postgres.async_engine()
    await schema.apply(engine, names)
    postgres.run("DROP INDEX app.order_pending", "DROP INDEX app.order_failed")

    # when
    for problem in await schema.check(engine, names):
        postgres.run(problem.partition("; ")[2])
    postgres.run('ALTER TABLE app."order" ALTER COLUMN position SET CACHE 9')
    for problem in await schema.check(engine, names):
        postgres.run(problem.partition("; ")[2])

    # then
    assert await schema.check(engine, names) == []


async def test_check_sees_that_sqlite_would_reuse_positions(tmp_path: Path) -> None:
    # given
    database = Database(f"sqlite:///{tmp_path / 'outbox.db'}")
    engine = database.async_engine()
    await schema.apply(engine)
    made_by = database.run("SELECT sql FROM sqlite_master WHERE tbl_name = 'outbox'")
    again = [sql.replace("AUTOINCREMENT", "") for (sql,) in made_by if sql]

    # when
    database.run("DROP TABLE outbox", *again)

    # then
    (problem,) = await schema.check(engine)
    assert problem.startswith("column outbox.position is not AUTOINCREMENT")


async def test_other_databases_are_refused_by_name(database: Database) -> None:
    engine = database.async_engine()
    engine.dialect.name = "mysql"

    for refused in (schema.apply(engine), schema.check(engine)):
        with pytest.raises(ConfigurationError, match="mysql: the outbox needs"):
            await refused
