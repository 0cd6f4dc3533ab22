"""A real Alembic environment whose own revisions bring the outbox."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Column, Integer, MetaData, Table

from outrider.integrations.alembic import include_object
from outrider.store.schema import migrate as schema
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.tables import OutboxTables
from outrider.testing.services import Services
from tests.support.databases import DIALECTS, Database, fresh, fresh_postgres, insert, pipe

ENV = """
from alembic import context

given = context.config.attributes
options = given["options"]
if context.is_offline_mode():
    context.configure(dialect_name=given["engine"].dialect.name, output_buffer=given["printed"])
    with context.begin_transaction():
        context.run_migrations()
else:
    with given["engine"].connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
"""

REVISION = """
import sqlalchemy as sa
from alembic import context, op
from outrider.integrations import alembic as outbox

revision, down_revision = {revision!r}, {before!r}
names = context.config.attributes["names"]

def upgrade():
    {upgrade}

def downgrade():
    {downgrade}
"""

STORY = [
    ("op.create_table('orders', sa.Column('id', sa.Integer))", "op.drop_table('orders')"),
    ("outbox.upgrade(op, names=names, to=1)", "outbox.downgrade(op, names=names, since=1)"),
    (
        "outbox.upgrade(op, names=names, since=1)",
        "outbox.downgrade(op, names=names, to=1)",
    ),
]


@dataclass
class Application:
    """Somebody's project: a table of its own, and Alembic."""

    database: Database
    config: Config
    printed: io.StringIO

    def options(self, **options: Any) -> None:
        self.config.attributes["options"].update(options)

    def sql(self, run: Any, revisions: str) -> str:
        run(self.config, revisions, sql=True)
        return self.printed.getvalue()

    def tables(self, schema_name: str | None = None) -> dict[str, Any]:
        picture = self.database.picture(schema_name)
        return {name: picture[name] for name in picture.keys() - {"alembic_version", "orders"}}


def application(database: Database, folder: Path, names: OutboxNames | None = None) -> Application:
    (folder / "versions").mkdir()
    (folder / "env.py").write_text(ENV)
    for number, (upgrade, downgrade) in enumerate(STORY):
        text = REVISION.format(
            revision=f"r{number}",
            before=f"r{number - 1}" if number else None,
            upgrade=upgrade,
            downgrade=downgrade,
        )
        (folder / "versions" / f"r{number}.py").write_text(text)
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer))
    config, printed = Config(), io.StringIO()
    config.set_main_option("script_location", str(folder))
    options = {"target_metadata": metadata, "include_object": include_object(names)}
    config.attributes.update(
        engine=database.engine(), options=options, printed=printed, names=names
    )
    return Application(database, config, printed)


@pytest.fixture(params=DIALECTS)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Application]:
    with fresh(request.param, request, tmp_path) as database:
        folder = tmp_path / "alembic"
        folder.mkdir()
        yield application(database, folder)


@pytest.fixture
def postgres(services: Services) -> Iterator[Database]:
    with fresh_postgres(services) as database:
        yield database


def test_revisions_bring_the_outbox_take_it_away_and_bring_it_again(app: Application) -> None:
    # given
    OutboxTables().metadata.create_all(app.database.engine())
    expected = app.tables()
    OutboxTables().metadata.drop_all(app.database.engine())

    for _ in range(2):
        # when
        command.upgrade(app.config, "head")

        # then
        assert app.tables() == expected
        with app.database.engine().connect() as connection:
            assert schema.problems(connection) == []

        # when
        command.downgrade(app.config, "base")

        # then
        assert set(app.database.picture()) == {"alembic_version"}


def test_autogenerate_leaves_the_outbox_alone(app: Application) -> None:
    # given
    command.upgrade(app.config, "head")

    # when, then: it raises if there is anything to do
    command.check(app.config)

    # and without our part it would drop the tables
    app.options(include_object=None)
    with pytest.raises(CommandError, match="outbox_lanes"):
        command.check(app.config)


def test_autogenerate_leaves_tables_in_the_metadata_of_the_application_alone(
    app: Application,
) -> None:
    # given
    metadata = app.config.attributes["options"]["target_metadata"]
    OutboxTables(metadata=metadata)

    # when
    command.upgrade(app.config, "r0")
    command.stamp(app.config, "head")

    # then: not even what is missing is proposed
    command.check(app.config)
    app.options(include_object=None)
    with pytest.raises(CommandError, match="outbox"):
        command.check(app.config)


def test_autogenerate_still_sees_the_tables_of_the_application(app: Application) -> None:
    # given
    command.upgrade(app.config, "head")

    # when
    metadata = app.config.attributes["options"]["target_metadata"]
    Table("orders_outbox", metadata, Column("id", Integer))

    # then
    with pytest.raises(CommandError, match="orders_outbox"):
        command.check(app.config)


def test_rows_survive_the_next_revision_and_the_way_back(app: Application) -> None:
    # given
    command.upgrade(app.config, "r1")
    app.database.run(insert())

    # when
    command.upgrade(app.config, "head")

    # then
    assert app.database.run("SELECT position, delivery_number FROM outbox") == [(1, None)]

    # when
    command.downgrade(app.config, "r1")

    # then
    assert app.database.run("SELECT position FROM outbox") == [(1,)]
    assert set(app.tables()) == {"outbox", "outbox_schema", "processed_events"}


def test_revision_finds_done_what_another_door_has_done(app: Application) -> None:
    # given
    with app.database.engine().begin() as connection:
        schema.upgrade(connection)

    # when
    command.upgrade(app.config, "head")

    # then
    assert app.database.run("SELECT version FROM outbox_schema ORDER BY 1") == [
        (number,) for number in range(1, schema.LATEST + 1)
    ]


def test_printed_revisions_make_the_same(
    services: Services, postgres: Database, tmp_path: Path
) -> None:
    # given
    names = OutboxNames(schema="app", table="order")
    app = application(postgres, tmp_path, names)
    command.upgrade(app.config, "head")
    expected = app.tables("app")
    command.downgrade(app.config, "base")
    postgres.run("DROP SCHEMA app", "DROP TABLE alembic_version")
    assert expected

    # when
    pipe(services, postgres, app.sql(command.upgrade, "base:head"))

    # then
    assert app.tables("app") == expected

    # when
    app.printed.truncate(app.printed.seek(0))
    pipe(services, postgres, app.sql(command.downgrade, "head:base"))

    # then
    assert app.tables("app") == {}


@pytest.mark.parametrize("where", ["app", "public"])
def test_autogenerate_over_all_schemas_leaves_the_outbox_alone(
    postgres: Database, tmp_path: Path, where: str
) -> None:
    # given: somebody else's table of the same name in another schema
    app = application(postgres, tmp_path, OutboxNames(schema=where))
    app.options(include_schemas=True)
    command.upgrade(app.config, "head")
    command.check(app.config)

    # when
    postgres.run("CREATE SCHEMA theirs", "CREATE TABLE theirs.outbox (x integer)")

    # then
    with pytest.raises(CommandError, match="theirs"):
        command.check(app.config)
