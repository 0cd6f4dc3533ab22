"""The steps that make and change the tables: as text, applied under a lock, and checked.

`upgrade`, `downgrade`, `version` and `problems` work on a plain Connection, inside its
transaction; `apply`, `current_version`, `check` and `create_all` do the same for an AsyncEngine.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite

from outrider.errors import ConfigurationError
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.problems import damage
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.sql.compiler import IdentifierPreparer

_FOLDER: Final = files("outrider.store.schema") / "migrations"
_DIALECTS: Final = {"postgresql": postgresql.dialect, "sqlite": sqlite.dialect}

LATEST: Final = max(int(file.name[:4]) for file in _FOLDER.iterdir() if file.name[:4].isdigit())
"""The version that this release works with."""

APPLY: Final = "run `outrider schema apply`"

# What a relay changes in a row; all the rest of an event is fixed when it is recorded.
STATE_COLUMNS: Final = (
    "status",
    "retry_count",
    "crash_count",
    "next_retry_at",
    "last_error",
    "published_at",
    "delivery_number",
)

# What a follower of the deliveries reads.
DELIVERED_COLUMNS: Final = (
    *("sink", "delivery_number", "id", "event_type", "event_version", "aggregate_type"),
    *("aggregate_id", "occurred_at", "payload", "metadata"),
)

ROLES: Final = ("producer", "relay", "consumer", "reader", "page", "operator")
"""What database roles can be for: recording, relaying, handling, following a live stream, looking
at the page without payloads, and repairing."""


def statements(
    dialect_name: str, names: OutboxNames | None = None, *, since: int = 0, to: int = LATEST
) -> list[str]:
    """What leads from one version to another, up or down, without looking at a database."""
    names = names or OutboxNames()
    create = _create_schema(dialect_name, names) if since == 0 < to else []
    return [*create, *_steps(dialect_name, names, since, to)]


def grants(names: OutboxNames | None = None, **roles: str) -> list[str]:
    """The least that PostgreSQL roles need, by what they are for; the roles must exist.

    `grants(producer="shop_api", relay="shop_relay")`; ROLES says what else there is.
    """
    names = names or OutboxNames()
    if unknown := set(roles) - set(ROLES):
        raise ConfigurationError(f"role {', '.join(unknown)}: there is {', '.join(ROLES)}")
    quote = _preparer("postgresql", names).quote_identifier
    given = {role: quote(name) for role, name in roles.items()}
    columns = OutboxTables(names).outbox.c.keys()
    identifiers = _identifiers("postgresql", names) | {
        "state_columns": ", ".join(STATE_COLUMNS),
        "delivered_columns": ", ".join(DELIVERED_COLUMNS),
        "shown_columns": ", ".join(column for column in columns if column != "payload"),
    }
    template = _split((_FOLDER / "roles_postgresql.sql").read_text())
    wanted = [line for line in template if line.rpartition("{")[2].rstrip("}") in roles]
    if names.schema:
        usage = f"GRANT USAGE ON SCHEMA {quote(names.schema)} TO {', '.join(given.values())}"
        return [usage, *(line.format(**identifiers, **given) for line in wanted)]
    return [line.format(**identifiers, **given) for line in wanted]


def version(connection: Connection, names: OutboxNames | None = None) -> int:
    """Which step was the last; 0 before the first."""
    names = names or OutboxNames()
    table = OutboxTables(names).version
    if not inspect(connection).has_table(table.name, schema=table.schema):
        return 0
    return connection.scalar(select(func.max(table.c.version))) or 0


def upgrade(
    connection: Connection, names: OutboxNames | None = None, to: int | None = None
) -> list[int]:
    """Apply what is missing, and say what that was; whoever comes second finds it done."""
    names, to = names or OutboxNames(), LATEST if to is None else to
    since = _locked_version(connection, names)
    if since == 0 < to:
        _refuse_strangers(connection, names)
        if names.schema and not inspect(connection).has_schema(names.schema):
            _execute(connection, _create_schema(connection.dialect.name, names))
    _execute(connection, _steps(connection.dialect.name, names, since, max(since, to)))
    return list(range(since + 1, to + 1))


def downgrade(connection: Connection, names: OutboxNames | None = None, to: int = 0) -> list[int]:
    """Take steps back, with everything that is in the tables they made."""
    names = names or OutboxNames()
    since = _locked_version(connection, names)
    _execute(connection, _steps(connection.dialect.name, names, since, min(since, to)))
    return list(range(since, to, -1))


def problems(connection: Connection, names: OutboxNames | None = None) -> list[str]:
    """What is wrong with the tables, each with its cure; nothing is changed."""
    names = names or OutboxNames()
    _preparer(connection.dialect.name, names)
    found = version(connection, names)
    if found == 0:
        return [f"no version in table {names.all['version']}: the tables are missing; {APPLY}"]
    if found < LATEST:
        return [f"the tables are at version {found}, this release needs {LATEST}; {APPLY}"]
    if found > LATEST:
        return [_too_new(found)]
    made_by = _steps(connection.dialect.name, names, 0, LATEST)
    return damage(connection, OutboxTables(names), made_by)


async def apply(
    engine: AsyncEngine, names: OutboxNames | None = None, to: int | None = None
) -> list[int]:
    """Apply what is missing, all or nothing, and say what that was."""
    if engine.dialect.name == "postgresql":
        # Else AUTOCOMMIT would lose the lock, and a snapshot would hide what it waited for.
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    async with engine.begin() as connection:
        return await connection.run_sync(upgrade, names, to)


async def create_all(engine: AsyncEngine, names: OutboxNames | None = None) -> None:
    """All tables at their latest version: for demos and tests."""
    await apply(engine, names)


async def current_version(engine: AsyncEngine, names: OutboxNames | None = None) -> int:
    """The last step that was applied; 0 if there are no tables."""
    async with engine.connect() as connection:
        return await connection.run_sync(version, names)


async def check(engine: AsyncEngine, names: OutboxNames | None = None) -> list[str]:
    """What is wrong with the tables, each with its cure; an empty list is a good sign."""
    async with engine.connect() as connection:
        return await connection.run_sync(problems, names)


def _preparer(dialect_name: str, names: OutboxNames) -> IdentifierPreparer:
    if dialect_name not in _DIALECTS:
        raise ConfigurationError(f"{dialect_name}: the outbox needs {' or '.join(_DIALECTS)}")
    if dialect_name == "sqlite" and names.schema is not None:
        raise ConfigurationError(f"schema {names.schema!r}: SQLite has none; leave it out")
    # The parameter style keeps % single in what is printed.
    dialect: Dialect = _DIALECTS[dialect_name](paramstyle="named")
    return dialect.identifier_preparer


def _identifiers(dialect_name: str, names: OutboxNames) -> dict[str, str]:
    """What the placeholders stand for: tables with their schema, indexes without.

    CREATE INDEX takes the schema from the table; DROP INDEX needs {in_schema} in front.
    """
    quote = _preparer(dialect_name, names).quote_identifier
    here = f"{quote(names.schema)}." if names.schema else ""
    return {"in_schema": here} | {
        key: quote(name) if key.endswith("_index") else here + quote(name)
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
    # A semicolon ends a statement only at the end of a line; comments may hold others.
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
        # Python's driver would begin at the first INSERT only, and leave the tables outside.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    found = version(connection, names)
    if found > LATEST:
        raise ConfigurationError(_too_new(found))
    return found


# The lock function does nothing for NULL, which current_schema() may be.
_ADVISORY_LOCK: Final = text(
    "SELECT pg_advisory_xact_lock(hashtextextended('outrider:' || "
    "coalesce(CAST(:schema AS text), current_schema(), '') || '.' || CAST(:table AS text), 0))"
)


def _too_new(found: int) -> str:
    return f"the tables are at version {found}, this release knows {LATEST}; upgrade outrider"


def _refuse_strangers(connection: Connection, names: OutboxNames) -> None:
    for table in OutboxTables(names).metadata.sorted_tables:
        known = inspect(connection).has_table(table.name, schema=table.schema)
        if known and table.name != names.all["version"]:
            raise ConfigurationError(
                f"table {table.fullname} exists, and {names.all['version']} does not say which "
                "version it is; drop it or choose another name"
            )
