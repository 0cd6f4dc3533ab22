"""Deliberate bugs, each with the tests that must notice it: what the suite is worth."""
# ruff: noqa: E501 - source is quoted as it stands

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


class Edit(NamedTuple):
    """`old` occurs exactly once in the file, which lies under src/outrider."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """Each of the tests must fail with it, one of them in the way that `shows` describes.

    Those in `caught_by` need no server and little time.
    """

    edits: tuple[Edit, ...]
    shows: str
    caught_by: tuple[str, ...] = ()
    caught_on_servers: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        return self.caught_by + self.caught_on_servers


_STORES: Final = "tests/conformance/test_stores.py"
_RELAY: Final = "tests/integration/test_relay.py"
_ONE_STORE: Final = "tests/integration/test_store.py"
_INBOX: Final = "tests/integration/test_inbox.py"
_SAVEPOINTS: Final = "tests/integration/test_savepoints.py"

MUTATIONS: Final = {
    "no token check": Mutation(
        (
            Edit(
                "store/sqlite/statements.py",
                "WHERE sink = :sink AND owner = :relay AND lane = :lane AND token = :token",
                "WHERE sink = :sink AND lane = :lane",
            ),
            Edit(
                "store/postgres/settle_sql.py",
                "USING (lane, token)\n    WHERE sink = $1 AND owner = $2",
                "USING (lane)\n    WHERE sink = $1 AND $2::uuid IS NOT NULL",
            ),
        ),
        r"assert \(3, \{\}\) == \(0, \{\}\)|assert 2 == 0",
        (
            f"{_STORES}::TestSqliteOutbox::test_stale_relay_changes_nothing",
            f"{_STORES}::TestSqliteOutbox::test_right_owner_with_an_old_token_changes_nothing",
        ),
        (
            f"{_STORES}::TestPostgresOutbox::test_stale_relay_changes_nothing",
            f"{_STORES}::TestPostgresOutbox::test_right_owner_with_an_old_token_changes_nothing",
        ),
    ),
    "settle before ack": Mutation(
        (
            Edit(
                "relay/loop.py",
                "        outcomes = await self._publish_opened(batch)\n",
                "        await self._settle(batch, [], [])\n"
                "        outcomes = await self._publish_opened(batch)\n",
            ),
        ),
        r"Counter\(\{'published': [12]\}\) == \{'pending': [12]\}",
        (
            f"{_RELAY}::test_cancelled_relay_leaves_its_work_for_the_next[sqlite+aiosqlite]",
            f"{_RELAY}::test_relay_whose_lease_ran_out_publishes_and_settles_nothing_more"
            "[sqlite+aiosqlite]",
        ),
    ),
    "row claims": Mutation(
        (
            Edit(
                "recording/rows.py",
                "        key % LANES,\n        key,\n",
                "        envelope.event_id.int % LANES,\n        envelope.event_id.int % 2**63,\n",
            ),
        ),
        r"an aggregate has one lane",
        (
            f"{_STORES}::TestSqliteOutbox"
            "::test_claim_gives_the_oldest_in_order_and_only_of_the_lanes_asked_for",
            f"{_STORES}::TestSqliteOutbox::test_refused_event_holds_back_its_aggregate_and_no_other",
        ),
        (
            f"{_STORES}::TestPostgresOutbox"
            "::test_claim_gives_the_oldest_in_order_and_only_of_the_lanes_asked_for",
        ),
    ),
    "cursor instead of status": Mutation(
        (
            Edit(
                "store/postgres/scan_start.py",
                "        if any(now >= self._rescan_at.get(lane, 0.0) for lane in lanes):\n",
                "        if False:\n",
            ),
        ),
        r"assert (0 in \[1001|\[\] == \[1\])",
        (
            "tests/unit/test_lanes.py::test_every_two_seconds_a_lane_is_looked_at_from_the_beginning",
        ),
        (f"{_ONE_STORE}::test_event_that_was_committed_late_is_found_although_none_follows",),
    ),
    "scan start without probe": Mutation(
        (Edit("store/postgres/store.py", "        if not unsure:\n", "        if True:\n"),),
        r"assert \[4\] == \[1, 4\]",
        (),
        (f"{_ONE_STORE}::test_event_that_was_committed_late_comes_before_what_followed_it",),
    ),
    "attempts counted in an outage": Mutation(
        (
            Edit(
                "relay/loop.py",
                "                    return [Unknown(str(error))] * len(batch)\n",
                "                    return [Refused(str(error))] * len(batch)\n",
            ),
        ),
        r"assert \[2\] == \[0\]",
        (f"{_RELAY}::test_sink_that_raises_unavailable_is_paused_for[sqlite+aiosqlite]",),
    ),
    "ack before commit": Mutation(
        (
            Edit(
                "consumer/consumer.py",
                "            async with self._in_flight:\n",
                "            await self._source.acknowledge(delivery)\n"
                "            async with self._in_flight:\n",
            ),
        ),
        r"assert \[\] == \[<EventEnvelo",
        ("tests/unit/test_consumer.py::test_acknowledged_only_after_the_handler_is_done",),
    ),
    "mark after handle": Mutation(
        (
            Edit(
                "consumer/sql_inbox.py",
                "first = await self._mark(session, envelope.event_id, handler_name)\n"
                "                with _guard_mark(session):\n"
                "                    yield first\n"
                "                if first:\n",
                "c, e = self._table.c, envelope.event_id\n"
                "                mine = exists().where(c.event_id == e, c.handler_name == handler_name)\n"
                "                yield (first := not await session.scalar(select(mine)))\n"
                "                if first:\n"
                "                    await session.commit()\n"
                "                    await self._mark(session, e, handler_name)\n",
            ),
        ),
        r"assert \(\d+, 1\) == \(1, 1\)",
        (f"{_INBOX}::test_twenty_deliveries_at_once_take_effect_once[sqlite+aiosqlite]",),
        (
            "tests/integration/test_inbox_faults.py::test_consumer_that_is_killed_takes_effect_once"
            "[sqlite+aiosqlite-between commit and acknowledgement]",
        ),
    ),
    "mandatory off": Mutation(
        (
            Edit(
                "brokers/rabbitmq/amqp/frames.py",
                '_MANDATORY: Final = b"\\x01"',
                '_MANDATORY: Final = b"\\x00"',
            ),
        ),
        r"assert \(.shop., .*False\) == \(.shop., .*True\)",
        (
            "tests/unit/test_rabbitmq_settings.py"
            "::test_another_implementation_reads_what_was_marshalled_by_hand",
        ),
        (
            "tests/integration/test_rabbitmq.py"
            "::test_unroutable_event_waits_and_holds_back_only_its_aggregate",
        ),
    ),
    "unknown treated as success": Mutation(
        (
            Edit(
                "relay/loop.py",
                "accepted = [event for event, outcome in pairs if isinstance(outcome, Accepted)]",
                "accepted = [event for event, o in pairs if isinstance(o, Accepted | Unknown)]",
            ),
        ),
        r"Counter\(\{'published': \d+.*\}\) == \{'pending': 50\}",
        (f"{_RELAY}::test_outage_costs_no_attempts_and_ends_by_itself[sqlite+aiosqlite]",),
    ),
    "unknown treated as refusal": Mutation(
        (
            Edit(
                "relay/loop.py",
                "for e, o in pairs if isinstance(o, Refused)]",
                "for e, o in pairs if isinstance(o, Refused | Unknown)]",
            ),
        ),
        r"assert \{.*\} == \{0\}|'failed'.* == \{'pending': 50\}",
        (f"{_RELAY}::test_outage_costs_no_attempts_and_ends_by_itself[sqlite+aiosqlite]",),
    ),
    "lease by local clock": Mutation(
        (
            Edit(
                "store/postgres/store.py",
                "taken = await connection.fetch(self._sql.take, self.sink, relay, duration, wanted)",
                "from datetime import UTC, datetime\n"
                "                local = self._sql.take.replace(\n"
                "                    '< clock_timestamp()', f\"< '{datetime.now(UTC)}'\")\n"
                "                taken = await connection.fetch(local, self.sink, relay, duration, wanted)",
            ),
        ),
        r"assert 32 == 0",
        (),
        (f"{_ONE_STORE}::test_leases_follow_the_clock_of_the_database",),
    ),
    "renew without token": Mutation(
        (
            Edit(
                "store/sqlite/statements.py",
                'SET expires_at = {_THEN} WHERE sink = :sink AND owner = :relay"',
                'SET expires_at = {_THEN}, owner = :relay WHERE sink = :sink"',
            ),
            Edit(
                "store/postgres/lease_sql.py",
                "WHERE sink = $1 AND owner = $2\nRETURNING lane, token",
                "WHERE sink = $1\nRETURNING lane, token",
            ),
        ),
        r"assert \(0, \{0: 0.* == \(0, \{\}\)",
        (f"{_STORES}::TestSqliteOutbox::test_stale_relay_changes_nothing",),
        (f"{_STORES}::TestPostgresOutbox::test_stale_relay_changes_nothing",),
    ),
    "deletion that ignores status": Mutation(
        (
            Edit(
                "store/sqlite/statements.py",
                "        SELECT position, published_at FROM {{outbox}}\n"
                "        WHERE sink = :sink AND delivery_number IS NOT NULL\n"
                "        ORDER BY delivery_number\n"
                "        LIMIT :limit\n"
                "    ) AS oldest\n"
                "    WHERE published_at < {_THEN}\n"
                ") AND status = '{PUBLISHED}'\n",
                "        SELECT position FROM {{outbox}} WHERE sink = :sink\n"
                "        AND coalesce(published_at, created_at) < {_THEN}\n"
                "        ORDER BY position LIMIT :limit\n"
                "    ) AS oldest\n"
                ")\n",
            ),
            Edit(
                "store/postgres/maintenance_sql.py",
                "        SELECT position, published_at FROM {{outbox}}\n"
                "        WHERE sink = $1 AND delivery_number IS NOT NULL\n"
                "        ORDER BY delivery_number\n"
                "        LIMIT $2\n"
                "    ) AS oldest\n"
                "    WHERE published_at < clock_timestamp() - $3::interval\n"
                ") AND status = '{PUBLISHED}'\n",
                "        SELECT position FROM {{outbox}} WHERE sink = $1\n"
                "        AND coalesce(published_at, created_at) < clock_timestamp() - $3::interval\n"
                "        ORDER BY position LIMIT $2\n"
                "    ) AS oldest\n"
                ")\n",
            ),
        ),
        r"assert 2 == 1",
        (
            f"{_ONE_STORE}::test_only_old_published_events_are_deleted_a_few_at_a_time"
            "[sqlite+aiosqlite]",
        ),
        (
            f"{_ONE_STORE}::test_only_old_published_events_are_deleted_a_few_at_a_time"
            "[postgresql+asyncpg]",
        ),
    ),
    "savepoint events kept": Mutation(
        (
            Edit(
                "recording/session_hook.py",
                "            rows.roll_back_to(scope)\n",
                "            pass\n",
            ),
        ),
        r"assert \[1, 10, 12\] == \[1, 12\]",
        (
            f"{_SAVEPOINTS}::test_what_was_raised_in_a_savepoint_that_is_rolled_back_is_gone"
            "[sqlite+aiosqlite]",
        ),
    ),
    "cancel reuses the connection": Mutation(
        (
            Edit(
                "store/postgres/connections.py",
                "            self.abort(connection)\n            if isinstance",
                "            self._idle.append(connection)\n            if isinstance",
            ),
        ),
        r"assert (\d+) != \1",
        (),
        (f"{_ONE_STORE}::test_connection_of_a_call_that_was_given_up_is_never_used_again",),
    ),
    "error text stored raw": Mutation(
        (
            Edit(
                "consumer/handler_runner.py",
                "own = isinstance(error, _OWN_ERRORS)",
                "own = True",
            ),
        ),
        r"ValueError: ValueError: canary",
        (
            "tests/unit/test_handler_runner.py"
            "::test_error_decides_what_is_done_and_its_text_stays_out_of_the_reason",
        ),
        (f"{_INBOX}::test_signals_of_a_failing_handler_hold_no_values[sqlite+aiosqlite]",),
    ),
}
