"""`outrider doctor` on broken set-ups: each fault is named, with its cure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from outrider.brokers.rabbitmq import RabbitMQPublisher
from outrider.testing.services import Services
from tests.support.canary import CANARY
from tests.support.databases import Database, fresh_postgres
from tests.support.doctor import doctor, prepare


@pytest.fixture
def database(services: Services) -> Iterator[Database]:
    with fresh_postgres(services) as made:
        prepare(made)
        yield made


def found(findings: list[dict[str, Any]], subject: str) -> dict[str, Any]:
    return next(f for f in findings if f["subject"] == subject)


def test_healthy_set_up_has_no_fault(services: Services, database: Database) -> None:
    async def declare() -> None:
        async with RabbitMQPublisher(services.rabbitmq.url):
            pass

    database.run("DELETE FROM outbox")
    asyncio.run(declare())

    code, findings = doctor(DATABASE_URL=database.url, RABBITMQ_URL=services.rabbitmq.url)

    assert code == 0, findings
    assert {f["verdict"] for f in findings} == {"fine"}
    assert {f["subject"] for f in findings} >= {"schema", "privileges", "wake-up", "broker"}


def test_event_that_waits_for_its_sink_is_shown_with_the_reason(database: Database) -> None:
    database.run(
        "UPDATE outbox SET next_retry_at = clock_timestamp() + interval '1 hour', "
        "last_error = 'unroutable: bind a queue to it'"
    )

    _, findings = doctor(DATABASE_URL=database.url)

    finding = found(findings, "sink default")
    assert finding["verdict"] == "warning"
    assert finding["text"] == "t.a waits, and no attempt is counted: unroutable: bind a queue to it"
    assert "outrider show" in finding["cure"]


def no_tables(database: Database) -> dict[str, str]:
    database.run("DROP TABLE outbox_schema")
    return {}


def missing_index(database: Database) -> dict[str, str]:
    database.run("DROP INDEX outbox_pending")
    return {}


def old_schema(database: Database) -> dict[str, str]:
    database.run("DELETE FROM outbox_schema WHERE version > 2")
    return {}


def sequence_with_cache(database: Database) -> dict[str, str]:
    database.run("ALTER TABLE outbox ALTER position SET CACHE 20")
    return {}


def missing_privilege(database: Database) -> dict[str, str]:
    role = f"r{uuid4().hex[:8]}"
    database.run(
        f"CREATE ROLE {role} LOGIN PASSWORD '{CANARY}'", f"GRANT SELECT ON outbox TO {role}"
    )
    database.run(
        f"GRANT SELECT ON outbox_schema, outbox_sinks, outbox_relays, outbox_lanes TO {role}"
    )
    url = make_url(database.url).set(username=role, password=CANARY)
    return {"DATABASE_URL": url.render_as_string(hide_password=False)}


def read_only(database: Database) -> dict[str, str]:
    name = make_url(database.url).database
    database.run(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    return {}


def no_relay(database: Database) -> dict[str, str]:
    database.run("INSERT INTO outbox_sinks (sink) VALUES ('default')")
    return {}


def wrong_password(database: Database) -> dict[str, str]:
    url = make_url(database.url).set(password=CANARY)
    return {"DATABASE_URL": url.render_as_string(hide_password=False)}


def database_is_down(database: Database) -> dict[str, str]:
    return {"DATABASE_URL": f"postgresql://app:{CANARY}@127.0.0.1:1/shop"}


def broker_is_down(database: Database) -> dict[str, str]:
    return {"RABBITMQ_URL": f"amqp://app:{CANARY}@127.0.0.1:1"}


def unknown_broker(database: Database) -> dict[str, str]:
    return {"RABBITMQ_URL": f"gopher://app:{CANARY}@host"}


def wrong_setting(database: Database) -> dict[str, str]:
    return {"OUTBOX_LEASE": "soon"}


@pytest.mark.parametrize(
    ("breaks", "subject", "text", "cure"),
    [
        (no_tables, "schema", "tables are missing", "outrider schema apply"),
        (missing_index, "schema", "outbox_pending", "CREATE INDEX"),
        (old_schema, "schema", "at version 2", "outrider schema apply"),
        (sequence_with_cache, "schema", "cache", "cache"),
        (missing_privilege, "privileges", "DELETE on", "--roles"),
        (read_only, "default_transaction_read_only", "takes no changes", "primary"),
        (no_relay, "sink default", "no relay runs", "outrider relay --sink default"),
        (wrong_password, "database", "password", "password"),
        (database_is_down, "database", "cannot connect", "running"),
        (broker_is_down, "broker", "RabbitMQ at", "running"),
        (unknown_broker, "broker", "begin it with one of", "relay --help"),
        (wrong_setting, "settings", "OUTBOX_LEASE", "outrider config"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_fault_is_named_with_its_cure(
    database: Database,
    breaks: Callable[[Database], dict[str, str]],
    subject: str,
    text: str,
    cure: str,
) -> None:
    environment = {"DATABASE_URL": database.url, **breaks(database)}

    code, findings = doctor(**environment)

    finding = found(findings, subject)
    assert finding["verdict"] == "fault"
    assert text in finding["text"] + finding["cure"]
    assert cure.lower() in (finding["cure"] + finding["text"]).lower()
    assert code == (3 if subject == "database" else 1)


def test_sqlite_is_looked_at_too(tmp_path: Path) -> None:
    made = Database(f"sqlite:///{tmp_path}/shop.db")
    prepare(made)
    made.run("DELETE FROM outbox")

    code, findings = doctor(DATABASE_URL=made.url)

    assert code == 0, findings
    assert found(findings, "journal")["verdict"] in {"fine", "warning"}
