"""Rows held back until the commit, and forgotten with the savepoint they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from outrider.errors import InvalidEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from outrider.recording.rows import Row


class Writer(Protocol):
    """What holding rows back needs of an outbox."""

    def bind_arguments(self) -> dict[str, Any]: ...
    def write(self, connection: Connection, rows: list[Row]) -> None: ...
    def committed(self, connection: Connection, rows: list[Row]) -> None: ...


class UncommittedRows:
    """The rows of one transaction in the order they were recorded, each with its savepoints."""

    def __init__(self) -> None:
        self._rows: dict[tuple[UUID, str], tuple[Row, Sequence[object]]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Iterable[Row], savepoints: Sequence[object]) -> int:
        """Hold these rows; the same event again is held once. How many events are new?"""
        new: dict[tuple[UUID, str], tuple[Row, Sequence[object]]] = {}
        for row in rows:
            key = (row.id, row.sink)
            known = self._rows.get(key) or new.get(key)
            if known is None:
                new[key] = row, savepoints
            elif known[0] != row:
                raise InvalidEvent(
                    f"{row.event_type}: event {row.id} was recorded before in this transaction, "
                    "with other contents; give the second one an id of its own"
                )
        self._rows.update(new)
        return len({event_id for event_id, _ in new})

    def take(self) -> list[Row]:
        rows = [row for row, _ in self._rows.values()]
        self._rows.clear()
        return rows

    def clear(self) -> None:
        self._rows.clear()

    def roll_back_to(self, savepoint: object) -> None:
        """Forget what was recorded inside, at whatever depth."""
        self._rows = {key: held for key, held in self._rows.items() if savepoint not in held[1]}
