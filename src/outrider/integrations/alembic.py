"""Alembic: the migrations of the outbox inside a revision of the application.

def upgrade() -> None:
    outrider.integrations.alembic.upgrade(op, to=2)

def downgrade() -> None:
    outrider.integrations.alembic.downgrade(op)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Table, text

from outrider.store.schema import migrate as schema
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from alembic.runtime.migration import MigrationContext
    from sqlalchemy import Connection, TextClause
    from sqlalchemy.schema import SchemaItem

LATEST = schema.LATEST


class Op(Protocol):
    """The part of `alembic.op` that is used here."""

    def get_context(self) -> MigrationContext: ...
    def get_bind(self) -> Connection: ...
    def execute(self, sqltext: TextClause, /) -> None: ...


def upgrade(
    op: Op, *, names: OutboxNames | None = None, to: int = LATEST, since: int | None = None
) -> None:
    """Migrate up to version `to`. Always name it, so that an old revision never changes.

    Steps that were applied before are skipped. With --sql, which cannot read the database,
    `since` is the version to start from.
    """
    if op.get_context().as_sql:
        first = since or 0
        _print(op, names, first, max(first, to))
    else:
        schema.upgrade(op.get_bind(), names, to)


def downgrade(
    op: Op, *, names: OutboxNames | None = None, to: int = 0, since: int | None = None
) -> None:
    """Migrate down, which deletes all events in the tables; `since` is for --sql only."""
    if op.get_context().as_sql:
        last = LATEST if since is None else since
        _print(op, names, last, min(last, to))
    else:
        schema.downgrade(op.get_bind(), names, to)


def _print(op: Op, names: OutboxNames | None, since: int, to: int) -> None:
    for statement in schema.statements(op.get_context().dialect.name, names, since=since, to=to):
        op.execute(text(statement))


def include_object(names: OutboxNames | None = None) -> Callable[..., bool]:
    """For `context.configure(include_object=…)`: autogenerate ignores the outbox's tables."""
    names = names or OutboxNames()
    # Alembic reports tables of the default schema without a schema.
    schemas = {names.schema, None} if names.schema == "public" else {names.schema}
    tables = {table.name for table in OutboxTables(names).metadata.sorted_tables}

    def include(item: SchemaItem, *_: object) -> bool:
        table = item if isinstance(item, Table) else getattr(item, "table", None)
        return table is None or table.name not in tables or table.schema not in schemas

    return include
