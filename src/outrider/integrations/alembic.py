"""Alembic: the outbox's steps inside a revision of the application's own chain.

def upgrade() -> None:
    outrider.integrations.alembic.upgrade(op, to=2)

def downgrade() -> None:
    outrider.integrations.alembic.downgrade(op)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import text

from outrider.store.schema import migrate as schema
from outrider.store.schema.names import OutboxNames
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, TextClause

LATEST = schema.LATEST


class Op(Protocol):
    """What is used of `alembic.op`."""

    def get_context(self) -> Any: ...
    def get_bind(self) -> Connection: ...
    def execute(self, sqltext: TextClause, /) -> None: ...


def upgrade(
    op: Op, *, names: OutboxNames | None = None, to: int = LATEST, since: int | None = None
) -> None:
    """Take the steps up to a version; name it, so that an old revision stays what it was.

    What is there already is left alone; `since` is what --sql, which cannot look, starts from.
    """
    if op.get_context().as_sql:
        first = since or 0
        _print(op, names, first, max(first, to))
    else:
        schema.upgrade(op.get_bind(), names, to)


def downgrade(
    op: Op, *, names: OutboxNames | None = None, to: int = 0, since: int | None = None
) -> None:
    """Take the steps back, with all events in the tables; `since` is for --sql only."""
    if op.get_context().as_sql:
        last = LATEST if since is None else since
        _print(op, names, last, min(last, to))
    else:
        schema.downgrade(op.get_bind(), names, to)


def _print(op: Op, names: OutboxNames | None, since: int, to: int) -> None:
    for statement in schema.statements(op.get_context().dialect.name, names, since=since, to=to):
        op.execute(text(statement))


def include_object(names: OutboxNames | None = None) -> Callable[..., bool]:
    """For `context.configure(include_object=…)`: autogenerate leaves the outbox's tables alone."""
    names = names or OutboxNames()
    # Alembic sees the tables of the default schema without one.
    schemas = {names.schema, None} if names.schema == "public" else {names.schema}
    tables = {table.name for table in OutboxTables(names).metadata.sorted_tables}

    def include(item: Any, _: str | None, type_: str, *__: Any) -> bool:
        table = item if type_ == "table" else getattr(item, "table", None)
        return table is None or table.name not in tables or table.schema not in schemas

    return include
