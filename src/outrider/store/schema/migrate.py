"""Migrations: prints, applies and checks the steps that create and change the tables.

`upgrade`, `downgrade`, `version` and `problems` work on a plain Connection, inside its
transaction; `apply`, `current_version`, `check` and `create_all` do the same for an AsyncEngine.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite

from outrider.errors import ConfigurationError
from outrider.store.engines import check_engine
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.problems import schema_problems
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.sql.compiler import IdentifierPreparer

_FOLDER: Final = files("outrider.store.schema") / "migrations"
_DIALECTS: Final = {"postgresql": postgresql.dialect, "sqlite": sqlite.dialect}

LATEST: Final = max(int(file.name[:4]) for file in _FOLDER.iterdir() if file.name[:4].isdigit())
"""The schema version that this release needs."""

# The columns that a relay updates; it never changes the others.
RELAY_COLUMNS: Final = (
    "status",
    "retry_count",
    "crash_count",
    "next_retry_at",
    "last_error",
    "attempts",
    "published_at",
    "delivery_number",
)

# The columns that a reader of delivered events needs.
DELIVERED_COLUMNS: Final = (
    *("sink", "delivery_number", "id", "event_type", "event_version", "aggregate_type"),
    *("aggregate_id", "occurred_at", "payload", "metadata"),
)

ROLES: Final = ("producer", "relay", "consumer", "reader", "page", "operator")
"""Purposes of database roles: recording events, relaying, handling, reading a live stream, the
dashboard without payloads, and repairing."""


def statements(
    dialect_name: str, names: OutboxNames | None = None, *, since: int = 0, to: int = LATEST
) -> list[str]:
    """The SQL that migrates from one version to another, up or down; needs no database."""
    names = names or OutboxNames()
    create = _create_schema(dialect_name, names) if since == 0 < to else []
    return [*create, *_steps(dialect_name, names, since, to)]


def grants(names: OutboxNames | None = None, **roles: str) -> list[str]:
    """The GRANT statements with the fewest privileges for each purpose; the roles must exist.

    `grants(producer="shop_api", relay="shop_relay")`; ROLES lists all purposes.
    """
    names = names or OutboxNames()
    if unknown := set(roles) - set(ROLES):
        raise ConfigurationError(f"role {', '.join(unknown)}: there is {', '.join(ROLES)}")
    quote = _preparer("postgresql", names).quote_identifier
    given = {role: quote(name) for role, name in roles.items()}
    columns = OutboxTables(names).outbox.c.keys()
    identifiers = _identifiers("postgresql", names) | {
        "relay_columns": ", ".join(RELAY_COLUMNS),
        "delivered_columns": ", ".join(DELIVERED_COLUMNS),
        "page_columns": ", ".join(column for column in columns if column != "payload"),
    }
    template = _split((_FOLDER / "roles_postgresql.sql").read_text())
    selected = [grant for grant in template if grant.rpartition("{")[2].rstrip("}") in roles]
    if names.schema:
        usage = f"GRANT USAGE ON SCHEMA {quote(names.schema)} TO {', '.join(given.values())}"
        return [usage, *(grant.format(**identifiers, **given) for grant in selected)]
    return [grant.format(**identifiers, **given) for grant in selected]


def version(connection: Connection, names: OutboxNames | None = None) -> int:
    """The version of the tables; 0 if there are none."""
    names = names or OutboxNames()
    table = OutboxTables(names).version
    if not inspect(connection).has_table(table.name, schema=table.schema):
        return 0
    return connection.scalar(select(func.max(table.c.version))) or 0


def upgrade(
    connection: Connection, names: OutboxNames | None = None, to: int | None = None
) -> list[int]:
    """Apply missing steps and return their numbers; a second caller waits and then finds none."""
    names, to = names or OutboxNames(), LATEST if to is None else to
    since = _locked_version(connection, names)
    if since == 0 < to:
        _refuse_unversioned_tables(connection, names)
        if names.schema and not inspect(connection).has_schema(names.schema):
            _execute(connection, _create_schema(connection.dialect.name, names))
    _execute(connection, _steps(connection.dialect.name, names, since, max(since, to)))
    return list(range(since + 1, to + 1))


def downgrade(connection: Connection, names: OutboxNames | None = None, to: int = 0) -> list[int]:
    """Undo steps and return their numbers. Deletes the tables of these steps with their rows."""
    names = names or OutboxNames()
    since = _locked_version(connection, names)
    _execute(connection, _steps(connection.dialect.name, names, since, min(since, to)))
    return list(range(since, to, -1))


def problems(connection: Connection, names: OutboxNames | None = None) -> list[str]:
    """Every problem of the tables with its cure; changes nothing."""
    names = names or OutboxNames()
    _preparer(connection.dialect.name, names)
    current = version(connection, names)
    if current == 0:
        missing = f"no version in table {names.all['version']}: the tables are missing"
        return [f"{missing}; {names.cure()}"]
    if problem := version_problem(current, names):
        return [problem]
    migrations = _steps(connection.dialect.name, names, 0, LATEST)
    return schema_problems(connection, OutboxTables(names), migrations)


def version_problem(current: int | None, names: OutboxNames) -> str | None:
    """Why this release cannot work with tables of this version, with the cure.

    Tables that `MetaData.create_all` made have none, and are not refused.
    """
    if not current or current == LATEST:
        return None
    if current > LATEST:
        return _too_new(current)
    return f"the tables are at version {current}, this release needs {LATEST}; {names.cure()}"


def refuse_version(current: int | None, names: OutboxNames) -> None:
    if problem := version_problem(current, names):
        raise ConfigurationError(problem)


def refuse_tables(connection: Connection, names: OutboxNames) -> None:
    """Raises ConfigurationError if the outbox is not there, or has another version."""
    if not inspect(connection).has_table(names.table, schema=names.schema):
        where = f"{names.schema}.{names.table}" if names.schema else names.table
        raise ConfigurationError(f"there is no table {where} in this database; {names.cure()}")
    refuse_version(version(connection, names), names)


async def apply(
    engine: AsyncEngine, names: OutboxNames | None = None, to: int | None = None
) -> list[int]:
    """Apply missing steps in one transaction and return their numbers."""
    if engine.dialect.name == "postgresql":
        # In AUTOCOMMIT mode the lock would end at once. In a higher isolation level, the snapshot
        # would hide the steps of the process that had the lock before.
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    async with engine.begin() as connection:
        return await connection.run_sync(upgrade, names, to)


async def create_all(engine: AsyncEngine, names: OutboxNames | None = None) -> None:
    """Create all tables at the latest version, for demos and tests."""
    check_engine(engine, "create_all")
    await apply(engine, names)


async def current_version(engine: AsyncEngine, names: OutboxNames | None = None) -> int:
    """The version of the tables; 0 if there are none."""
    async with engine.connect() as connection:
        return await connection.run_sync(version, names)


async def check(engine: AsyncEngine, names: OutboxNames | None = None) -> list[str]:
    """Every problem of the tables with its cure; an empty list if all is well."""
    async with engine.connect() as connection:
        return await connection.run_sync(problems, names)


def _preparer(dialect_name: str, names: OutboxNames) -> IdentifierPreparer:
    if dialect_name not in _DIALECTS:
        raise ConfigurationError(f"{dialect_name}: the outbox needs {' or '.join(_DIALECTS)}")
    if dialect_name == "sqlite" and names.schema is not None:
        raise ConfigurationError(f"schema {names.schema!r}: SQLite has none; leave it out")
    # With this parameter style, SQLAlchemy does not double the % signs in the printed SQL.
    dialect: Dialect = _DIALECTS[dialect_name](paramstyle="named")
    return dialect.identifier_preparer


def _identifiers(dialect_name: str, names: OutboxNames) -> dict[str, str]:
    """The values of the placeholders: tables with their schema, indexes without it.

    CREATE INDEX takes the schema from the table; DROP INDEX needs {in_schema} in front.
    """
    quote = _preparer(dialect_name, names).quote_identifier
    schema = f"{quote(names.schema)}." if names.schema else ""
    return {"in_schema": schema} | {
        key: quote(name) if key.endswith("_index") else schema + quote(name)
        for key, name in names.all.items()
    }


def _create_schema(dialect_name: str, names: OutboxNames) -> list[str]:
    quote = _preparer(dialect_name, names).quote_identifier
    return [f"CREATE SCHEMA IF NOT EXISTS {quote(names.schema)}"] if names.schema else []


def _steps(dialect_name: str, names: OutboxNames, since: int, to: int) -> list[str]:
    for number in (since, to):
        if not 0 <= number <= LATEST:
            raise ConfigurationError(f"version {number}: this release knows 0 to {LATEST}")
    identifiers = _identifiers(dialect_name, names)
    if since <= to:
        first = 0 if since == 0 < to else since + 1
        texts = [_up(dialect_name, number) for number in range(first, to + 1)]
    else:
        last = 0 if to == 0 else to + 1
        texts = [_down(dialect_name, number) for number in range(since, last - 1, -1)]
    return _split("".join(texts).format(**identifiers))


def _split(sql: str) -> list[str]:
    # Only a semicolon at the end of a line ends a statement; comments may contain others.
    return [part.strip() for part in sql.split(";\n") if part.strip()]


def _up(dialect_name: str, number: int) -> str:
    record = f"INSERT INTO {{version}} (version) VALUES ({number});\n" if number else ""  # noqa: S608
    return (_FOLDER / f"{number:04}_{dialect_name}.sql").read_text() + record


def _down(dialect_name: str, number: int) -> str:
    record = f"DELETE FROM {{version}} WHERE version = {number};\n" if number else ""  # noqa: S608
    return (_FOLDER / f"{number:04}_{dialect_name}_down.sql").read_text() + record


def _execute(connection: Connection, sql: list[str]) -> None:
    for statement in sql:
        connection.execute(text(statement))


def _locked_version(connection: Connection, names: OutboxNames) -> int:
    _preparer(connection.dialect.name, names)
    if connection.dialect.name == "postgresql":
        connection.execute(_ADVISORY_LOCK, {"schema": names.schema, "table": names.table})
    elif not getattr(connection.connection.driver_connection, "in_transaction", False):
        # Python's driver begins a transaction only at the first INSERT, after CREATE TABLE.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    current = version(connection, names)
    if current > LATEST:
        raise ConfigurationError(_too_new(current))
    return current


# current_schema() may be NULL, and pg_advisory_xact_lock(NULL) takes no lock.
_ADVISORY_LOCK: Final = text(
    "SELECT pg_advisory_xact_lock(hashtextextended('outrider:' || "
    "coalesce(CAST(:schema AS text), current_schema(), '') || '.' || CAST(:table AS text), 0))"
)


def _too_new(current: int) -> str:
    return f"the tables are at version {current}, this release knows {LATEST}; upgrade outrider"


def _refuse_unversioned_tables(connection: Connection, names: OutboxNames) -> None:
    for table in OutboxTables(names).metadata.sorted_tables:
        exists = inspect(connection).has_table(table.name, schema=table.schema)
        if exists and table.name == names.processed:
            raise ConfigurationError(
                f"table {table.fullname} exists, and another outbox may use it; give this one its "
                "own: --processed or OUTBOX_PROCESSED"
            )
        if exists and table.name != names.all["version"]:
            raise ConfigurationError(
                f"table {table.fullname} exists, and {names.all['version']} does not say which "
                "version it is; choose another name, or drop it if nothing in it is needed"
            )
