"""The names of the tables, indexes and channels, checked before they are used in SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Final

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

_TABLES: Final = ("outbox", "processed", "lanes", "relays", "sinks", "actions", "version")
_DELIVERED_SUFFIX: Final = "_delivered"
_MAX_IDENTIFIER_CHARS: Final = 63
_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def check_identifier(what: str, name: object) -> str:
    """PostgreSQL truncates long names silently, and folds unquoted names to lower case.

    No error repeats the name: a misplaced URL has a password.
    """
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ConfigurationError(
            f"{what}: use 1 to 63 lower-case letters, digits and _, not a digit first"
        )
    return name


@dataclass(frozen=True, kw_only=True)
class OutboxNames:
    """The names of the tables and of the wake-up channel; all problems are reported together."""

    table: str = "outbox"
    """The table that events are written to."""
    prefix: str = ""
    """The start of the names of the other tables; if it is empty, they start with the name of the
    outbox table and _."""
    processed: str = "processed_events"
    """The inbox table, which remembers the events that were handled."""
    schema: str | None = None
    """The database schema of all tables; if it is not set, the search path of the database
    decides."""
    channel: str = "outbox_channel"
    """The PostgreSQL channel on which relays are notified of new events."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("table", "processed", "channel")}
        given |= {name: value for name in ("prefix", "schema") if (value := getattr(self, name))}
        # A name derived from a bad name is bad too, so derived names are checked only after these.
        problems = _problems(given) or _problems(self.all)
        tables = [self.all[key] for key in _TABLES]
        if not problems and len(set(tables)) < len(tables):
            problems = [f"two tables would share a name: {', '.join(sorted(tables))}"]
        if problems:
            raise ConfigurationError("; ".join(problems))

    def quoted(self, key: str, dialect: Dialect) -> str:
        """The quoted name of one table, with its schema."""
        quote = dialect.identifier_preparer.quote_identifier
        return ".".join(quote(name) for name in (self.schema, self.all[key]) if name)

    def cure(self, action: str = "apply") -> str:
        """What to run against missing or damaged tables, with the flags for names of one's own."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        own = [each.name for each in fields(self) if given[each.name] not in (each.default, "")]
        flags = "".join(f" --{name} {given[name]}" for name in own)
        return f"run `outrider schema {action}{flags}`"

    @property
    def delivered_channel(self) -> str:
        """The channel of readers of delivered events.

        Long names are truncated. If two outboxes get the same name, readers wake up without need.
        """
        return self.channel[: _MAX_IDENTIFIER_CHARS - len(_DELIVERED_SUFFIX)] + _DELIVERED_SUFFIX

    @cached_property
    def all(self) -> dict[str, str]:
        """All identifiers; the keys are the placeholders in the migrations."""
        prefix = self.prefix or f"{self.table}_"
        names = {
            "outbox": self.table,
            "processed": self.processed,
            "lanes": f"{prefix}lanes",
            "relays": f"{prefix}relays",
            "sinks": f"{prefix}sinks",
            "actions": f"{prefix}actions",
            "version": f"{prefix}schema",
            "pending_index": f"{self.table}_pending",
            "aggregate_index": f"{self.table}_aggregate",
            "waiting_index": f"{self.table}_waiting",
            "delivered_index": f"{self.table}_delivered",
            "failed_index": f"{self.table}_failed",
            "processed_index": f"{self.processed}_age",
            "channel": self.channel,
        }
        return {**names, "schema": self.schema} if self.schema is not None else names


def _problems(names: dict[str, str]) -> list[str]:
    problems = []
    for what, name in names.items():
        try:
            check_identifier(what, name)
        except ConfigurationError as problem:
            problems.append(str(problem))
    return problems
