"""Uncommitted rows: kept until the commit, discarded when their savepoint is rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from sqlalchemy.orm import make_transient

from outrider.errors import InvalidEvent
from outrider.recording.rows import is_changed, record_of, row_of_record

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from sqlalchemy import Connection, Table
    from sqlalchemy.orm import Session

    from outrider.recording.rows import Row
    from outrider.store.schema.tables import OutboxRecord


class Writer(Protocol):
    """The part of an Outbox that the session and connection hooks call."""

    @property
    def is_mapped(self) -> bool: ...
    def bind_arguments(self) -> dict[str, Table]: ...
    def write(self, connection: Connection, rows: list[Row]) -> None: ...
    def committed(self, connection: Connection, rows: list[Row]) -> None: ...


class _Entry(NamedTuple):
    row: Row | None
    """None for a record that the application has added, until the next flush."""
    savepoints: Sequence[object]


class UncommittedRows:
    """The rows of one transaction, in the order of recording, each with its open savepoints.

    A session shows each row as an `OutboxRecord` in `session.new` until its next flush. Until then,
    the application may change the record, or expunge it: then the row is discarded.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._shown: dict[OutboxRecord, Hashable] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, record: OutboxRecord) -> bool:
        return record in self._shown

    def add(self, rows: Iterable[Row], savepoints: Sequence[object]) -> list[Row]:
        """Add rows, and ignore rows that were added before; returns those that are new."""
        new: dict[Hashable, Row] = {}
        for row in rows:
            key = (row.id, row.sink)
            entry = self._entries.get(key)
            added = entry.row if entry else new.get(key)
            if added is None:
                new[key] = row
            elif added != row:
                raise InvalidEvent(
                    f"{row.event_type}: event {row.id} was recorded before in this transaction, "
                    "with other contents; give the second one an id of its own"
                )
        self._entries.update((key, _Entry(row, savepoints)) for key, row in new.items())
        return list(new.values())

    def show(self, session: Session, rows: Iterable[Row]) -> None:
        """Add a record to `session.new` for each of these rows, which were added before."""
        records = {record_of(row): (row.id, row.sink) for row in rows}
        self._shown |= records
        session.add_all(records)

    def add_record(self, record: OutboxRecord, savepoints: Sequence[object]) -> None:
        """Add a record that the application has put into `session.new`."""
        self._entries[record] = _Entry(None, savepoints)
        self._shown[record] = record

    def take_records(self, session: Session) -> None:
        """Take the records out of `session.new`, and keep their final rows."""
        while self._shown:
            record, key = self._shown.popitem()
            if record not in session:
                del self._entries[key]
                continue
            make_transient(record)  # faster than expunge, which looks for cascades
            row, savepoints = self._entries[key]
            if row is None or is_changed(record, row):
                self._entries[key] = _Entry(row_of_record(record), savepoints)

    def take(self) -> list[Row]:
        rows = [entry.row for entry in self._entries.values() if entry.row]
        self.clear()
        return rows

    def clear(self) -> None:
        self._entries.clear()
        self._shown.clear()

    def roll_back_to(self, savepoint: object) -> None:
        """Discard the rows recorded inside this savepoint or inside a savepoint within it."""
        self._entries = {
            key: entry for key, entry in self._entries.items() if savepoint not in entry.savepoints
        }
        self._shown = {r: key for r, key in self._shown.items() if key in self._entries}
