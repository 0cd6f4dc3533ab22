"""Uncommitted rows: kept until the commit, discarded when their savepoint is rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from outrider.errors import InvalidEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from sqlalchemy import Connection, Table

    from outrider.recording.rows import Row


class Writer(Protocol):
    """The part of an Outbox that the session and connection hooks call."""

    def bind_arguments(self) -> dict[str, Table]: ...
    def write(self, connection: Connection, rows: list[Row]) -> None: ...
    def committed(self, connection: Connection, rows: list[Row]) -> None: ...


class UncommittedRows:
    """The rows of one transaction, in the order of recording, each with its open savepoints."""

    def __init__(self) -> None:
        self._rows: dict[tuple[UUID, str], tuple[Row, Sequence[object]]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rows: Iterable[Row], savepoints: Sequence[object]) -> int:
        """Add rows, and ignore rows that were added before; returns how many events are new."""
        new: dict[tuple[UUID, str], tuple[Row, Sequence[object]]] = {}
        for row in rows:
            key = (row.id, row.sink)
            added = self._rows.get(key) or new.get(key)
            if added is None:
                new[key] = row, savepoints
            elif added[0] != row:
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
        """Discard the rows recorded inside this savepoint or inside a savepoint within it."""
        self._rows = {
            key: (row, savepoints)
            for key, (row, savepoints) in self._rows.items()
            if savepoint not in savepoints
        }
