"""The check-up of the database: finds what slows down, stops or loses events, with cures."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from sqlalchemy import text

from outrider.admin.inspector import OutboxInspector
from outrider.errors import OutriderError
from outrider.ports import CheckResult
from outrider.store.schema import migrate as schema
from outrider.store.schema.tables import OutboxTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from outrider.admin.summaries import EventSummary

_OLD_TRANSACTION: Final = timedelta(minutes=10)
_OLD_EVENT_S: Final = 60.0
_MAX_REASONS: Final = 3
_ALL_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_SETTING: Final = text("SELECT current_setting(:name)")
_HAS_TABLE_PRIVILEGE: Final = text("SELECT has_table_privilege(:table, :privilege)")
_CAN_UPDATE_COLUMN: Final = text("SELECT has_column_privilege(:table, :column, 'UPDATE')")
_OPEN_TRANSACTIONS: Final = text("""
SELECT who, cure, clock_timestamp() - since AS age FROM (
    SELECT 'the transaction of process ' || pid AS who, xact_start AS since,
        'SELECT pg_terminate_backend(' || pid || ')' AS cure
    FROM pg_stat_activity
    WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    UNION ALL
    SELECT 'the prepared transaction ' || quote_literal(gid), prepared,
        'ROLLBACK PREPARED ' || quote_literal(gid)
    FROM pg_prepared_xacts
) AS open ORDER BY since LIMIT 1
""")


async def check_database(
    engine: AsyncEngine, tables: OutboxTables | None = None, *, old: timedelta = _OLD_TRANSACTION
) -> list[CheckResult]:
    """All checks of the database; `old` is how long a transaction may stay open."""
    tables = tables or OutboxTables()
    problems = await schema.check(engine, tables.names)
    if problems:
        return [CheckResult("schema", "fault", *_split(problem)) for problem in problems]
    results = [CheckResult("schema", "fine", f"version {schema.LATEST}, all indexes are there")]
    async with engine.connect() as db:
        if db.dialect.name == "postgresql":
            results += [result async for result in _postgres(db, tables, old)]
        else:
            results += [result async for result in _sqlite(db)]
    results += [result async for result in _flow(OutboxInspector(engine, tables))]
    if engine.dialect.name == "postgresql" and engine.dialect.driver == "asyncpg":
        results.append(await _listening(engine, tables))
    return results


def _split(problem: str) -> tuple[str, str]:
    text, _, cure = problem.rpartition("; ")
    return (text, cure) if text else (problem, "")


async def _postgres(
    db: AsyncConnection, tables: OutboxTables, old: timedelta
) -> AsyncIterator[CheckResult]:
    yield await _privileges(db, tables)
    yield await _setting(
        db,
        "fsync",
        bad=("off",),
        text="a crash of the machine may damage the whole database",
        cure="ALTER SYSTEM SET fsync = on",
    )
    yield await _setting(
        db,
        "synchronous_commit",
        bad=("off",),
        text="a committed event may be lost when the server crashes",
        cure="ALTER SYSTEM SET synchronous_commit = on",
    )
    yield await _setting(
        db,
        "autovacuum",
        bad=("off",),
        text="settled events stay in front of pending ones, and claims get slower",
        cure="ALTER SYSTEM SET autovacuum = on",
    )
    yield await _setting(
        db,
        "default_transaction_read_only",
        bad=("on",),
        verdict="fault",
        text="this server takes no changes; is it a standby?",
        cure="connect to the primary",
    )
    yield await _oldest_transaction(db, old)
    yield await _notifications(db)


async def _setting(
    db: AsyncConnection,
    name: str,
    *,
    bad: tuple[str, ...],
    text: str,
    cure: str,
    verdict: Literal["warning", "fault"] = "warning",
) -> CheckResult:
    value = str(await db.scalar(_SETTING, {"name": name}))
    if value in bad:
        return CheckResult(name, verdict, f"{value}: {text}", cure)
    return CheckResult(name, "fine", value)


async def _privileges(db: AsyncConnection, tables: OutboxTables) -> CheckResult:
    """The privileges of a relay; a producer needs fewer, and an operator needs more."""
    required = {
        "outbox": ("SELECT", "DELETE"),
        **dict.fromkeys(("lanes", "relays", "sinks"), _ALL_PRIVILEGES),
    }
    names = {key: tables.names.quoted(key, db.dialect) for key in required}
    missing = [
        f"{privilege} on {names[key]}"
        for key, privileges in required.items()
        for privilege in privileges
        if not await db.scalar(_HAS_TABLE_PRIVILEGE, {"table": names[key], "privilege": privilege})
    ]
    missing += [
        f"UPDATE ({column}) on {names['outbox']}"
        for column in schema.RELAY_COLUMNS
        if not await db.scalar(_CAN_UPDATE_COLUMN, {"table": names["outbox"], "column": column})
    ]
    if missing:
        cure = "grant them as `outrider schema print --roles` shows"
        return CheckResult("privileges", "fault", f"missing: {', '.join(missing)}", cure)
    payload = {"table": names["outbox"], "column": "payload"}
    more = ", and more: it may change what events say" * bool(
        await db.scalar(_CAN_UPDATE_COLUMN, payload)
    )
    return CheckResult("privileges", "fine", f"enough for a relay{more}")


async def _oldest_transaction(db: AsyncConnection, old: timedelta) -> CheckResult:
    """An open transaction, also a prepared one, keeps vacuum from removing old row versions."""
    row = (await db.execute(_OPEN_TRANSACTIONS)).one_or_none()
    if row is None or row.age < old:
        return CheckResult("transactions", "fine", "none is old")
    return CheckResult(
        "transactions",
        "warning",
        f"{row.who} is open for {row.age.total_seconds() // 60:.0f} minutes: "
        "vacuum cannot remove old rows, and claims get slower",
        f"find out what it does; {row.cure} ends it",
    )


async def _notifications(db: AsyncConnection) -> CheckResult:
    usage = float(await db.scalar(text("SELECT pg_notification_queue_usage()")) or 0)
    if usage > 0.5:
        return CheckResult(
            "notifications",
            "warning",
            f"the queue is {usage:.0%} full: some listener does not read",
            "look for a session that LISTENs inside an open transaction",
        )
    return CheckResult("notifications", "fine", f"the queue is {usage:.0%} full")


async def _listening(engine: AsyncEngine, tables: OutboxTables) -> CheckResult:
    from outrider.store.postgres.connections import ConnectionPool
    from outrider.store.postgres.notifications import NotificationListener

    pool = ConnectionPool(engine, timedelta(seconds=5))
    listener = NotificationListener(pool, tables.names.channel, lambda _payload: None)
    try:
        arrives = await listener.open()
    except OutriderError:
        arrives = False
    finally:
        await listener.close()
        await pool.close()
    if arrives:
        return CheckResult("wake-up", "fine", "notifications arrive")
    return CheckResult(
        "wake-up",
        "warning",
        "no notification arrives, so relays only poll: a transaction pooler swallows LISTEN",
        "give relays a direct connection, or a shorter poll interval",
    )


async def _sqlite(db: AsyncConnection) -> AsyncIterator[CheckResult]:
    mode = str((await db.exec_driver_sql("PRAGMA journal_mode")).scalar())
    if mode == "wal":
        yield CheckResult("journal", "fine", "WAL: readers do not wait for the writer")
    else:
        cure = "PRAGMA journal_mode = WAL, once; a relay does it at its start"
        yield CheckResult("journal", "warning", f"{mode}: readers and writers wait", cure)


async def _flow(inspector: OutboxInspector) -> AsyncIterator[CheckResult]:
    relays = [relay for relay in await inspector.relays() if relay.alive]
    blocked = await inspector.blocked()
    for sink in await inspector.sinks():
        serving, name = [r for r in relays if r.sink == sink.sink], f"sink {sink.sink}"
        if sink.failed:
            cure = "look with `outrider failed`, then `outrider retry` or `outrider discard`"
            yield CheckResult(name, "warning", f"{sink.failed:,} events have failed", cure)
        if sink.parked:
            cure = "`outrider parked` names the failed events: `outrider retry` or `discard` them"
            parked = f"{sink.parked:,} events are parked behind failed ones of their aggregates"
            yield CheckResult(name, "warning", parked, cure)
        for event in _deferred(sink.sink, blocked):
            cure = f"remove the cause, then it goes out; `outrider show {event.event_id}`"
            why = f"{event.event_type} waits, and no attempt is counted: {event.last_error}"
            yield CheckResult(name, "warning", why, cure)
        waiting = sink.pending - sink.parked
        if waiting > 0 and not serving:
            cure = f"start one: outrider relay --sink {sink.sink}"
            yield CheckResult(name, "fault", f"{waiting:,} events wait and no relay runs", cure)
        elif sink.oldest is not None and sink.oldest.total_seconds() > _OLD_EVENT_S:
            waits = int(sink.oldest.total_seconds())
            cure = "is the broker up? see the relay's log"
            yield CheckResult(name, "warning", f"the oldest event waits for {waits:,} s", cure)
        else:
            yield CheckResult(name, "fine", f"{sink.pending:,} pending, {len(serving)} relays")


def _deferred(sink: str, blocked: list[EventSummary]) -> list[EventSummary]:
    """Events that the sink cannot take now: the first of each reason, and not too many."""
    waiting = [e for e in blocked if e.sink == sink and not e.retry_count and e.last_error]
    first_of_reason = {e.last_error: e for e in reversed(waiting)}
    return list(first_of_reason.values())[:_MAX_REASONS]
