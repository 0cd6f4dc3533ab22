"""`outrider doctor` says what an acknowledgement of the broker is worth, and what to change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError
from redis.asyncio import Redis
from sqlalchemy import text

from outrider.admin.checkup import check_database
from outrider.brokers.kafka import KafkaConfig, KafkaPublisher
from outrider.brokers.rabbitmq import Binding, Exchange, Queue, RabbitMQPublisher, Topology
from outrider.errors import ConfigurationError
from outrider.ports import CheckResult
from outrider.testing.services import Services
from outrider.testing.services.servers.server import Server
from tests.support.brokers.kafka_topics import administering, create
from tests.support.brokers.nats_streams import jetstream, unique
from tests.support.databases import Database, fresh_postgres
from tests.support.doctor import doctor, prepare
from tests.support.relay_environment import publisher_from


async def examined(publisher: Any) -> dict[str, CheckResult]:
    try:
        return {finding.subject: finding for finding in await publisher.check_durability()}
    finally:
        await publisher.close()


async def examined_when_open(publisher: Any) -> dict[str, CheckResult]:
    """With all that the publisher declares when it opens."""
    async with publisher:
        return await examined(publisher)


@pytest.fixture
def private(services: Services) -> Iterator[Server]:
    server = services.another("redis")
    yield server
    server.stop()


async def test_redis_that_forgets_is_found_out(private: Server) -> None:
    url = private.url
    fine = await examined(publisher_from(url, "events"))
    async with Redis.from_url(url) as admin:
        await admin.config_set("maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
        await admin.config_set("appendfsync", "no")
        lazy = (await examined(publisher_from(url, "events")))["persistence"]
        await admin.config_set("appendonly", "no")

    code, findings = await asyncio.to_thread(lambda: doctor(OUTBOX_TO=url))

    found = {each["subject"]: each for each in findings}
    assert (fine["eviction"].verdict, fine["persistence"].verdict) == ("fine", "fine")
    assert (lazy.verdict, "half a minute" in lazy.text) == ("warning", True)
    assert found["eviction"]["verdict"] == "fault"
    assert "noeviction" in found["eviction"]["cure"]
    assert found["persistence"]["verdict"] == "warning"
    assert "appendonly yes" in found["persistence"]["cure"]
    assert code == 1


async def test_redis_whose_settings_are_hidden_is_said_to_be_so(private: Server) -> None:
    async with Redis.from_url(private.url) as admin:
        await admin.execute_command("ACL", "SETUSER", "default", "-config")

    found = await examined(publisher_from(private.url, "events"))

    assert found["durability"].verdict == "warning"


@pytest.mark.parametrize(
    ("settings", "subject", "verdict", "words"),
    [
        ({}, "storage", "fine", "in a file"),
        ({}, "limits", "fine", "nothing is dropped"),
        ({"storage": StorageType.MEMORY}, "storage", "warning", "storage=file"),
        ({"max_msgs": 10}, "limits", "warning", "drops the oldest"),
        ({"max_age": 60, "discard": DiscardPolicy.NEW}, "limits", "warning", "60 seconds"),
        ({"max_msgs": 10, "discard": DiscardPolicy.NEW}, "limits", "fine", "refuses"),
    ],
)
async def test_limits_and_storage_of_a_nats_stream_are_read(
    services: Services, settings: dict[str, Any], subject: str, verdict: str, words: str
) -> None:
    name = unique()
    async with jetstream(services.nats.url) as js:
        await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **settings))

    finding = (await examined(publisher_from(services.nats.url, name)))[subject]

    assert finding.verdict == verdict
    assert words in finding.text + finding.cure


async def test_replicas_and_partitions_of_a_kafka_topic_are_read(services: Services) -> None:
    url = services.kafka.url
    await create(url, "doctor.fine", 3)
    await create(url, "doctor.bad", 1, **{"min.insync.replicas": "2"})
    async with administering(url) as admin:
        while not {"doctor.fine", "doctor.bad"} <= set(await admin.list_topics()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    fine = (await examined(publisher_from(url, "doctor.fine")))["topics"]
    bad = (await examined(publisher_from(url, "doctor.bad")))["topics"]

    assert fine.verdict == "fine"
    assert "3 partitions, 1 replicas" in fine.text
    assert bad.verdict == "fault"
    assert "accepts nothing" in bad.text
    assert "min.insync.replicas" in bad.cure


async def test_topology_of_rabbitmq_that_loses_messages_is_found_out(services: Services) -> None:
    passing = Exchange("doctor.passing", durable=False)
    dropping = Queue("doctor.dropping", arguments={"x-max-length": 5})
    safe = Queue("doctor.safe", kind="quorum")
    url = services.rabbitmq.url

    publisher = RabbitMQPublisher(url, exchange="doctor.passing", topology=Topology((passing,)))
    assert (await examined_when_open(publisher))["exchanges"].verdict == "warning"
    for queue, verdict, words in ((dropping, "warning", "drops"), (safe, "fine", "quorum")):
        publisher = RabbitMQPublisher(url, exchange="doctor", topology=Topology((), (queue,)))
        found = await examined_when_open(publisher)

        assert found["exchanges"].verdict == "fine"
        assert found["queues"].verdict == verdict
        assert words in found["queues"].text


async def test_missing_queue_and_exchange_of_rabbitmq_are_found_and_not_declared(
    services: Services,
) -> None:
    # given
    name, there = unique("doctor"), unique("there")
    url = services.rabbitmq.url
    async with RabbitMQPublisher(url, there, topology=Topology(queues=(Queue(there),))):
        pass
    queues = (Queue(name, (Binding(name),)), Queue(there), Queue(f"{name}.given", passive=True))
    publisher = RabbitMQPublisher(url, name, topology=Topology(queues=queues))

    # when
    twice = [await publisher.check_durability() for _ in range(2)]

    # then
    for checks in twice:
        assert [(check.verdict, check.text.partition(":")[0]) for check in checks] == [
            ("warning", f"exchange {name} is missing"),
            ("warning", f"queue {name} is missing"),
            ("fault", f"queue {name}.given is missing"),
            ("fine", there),
        ]
        assert "start a relay or a consumer with this topology" in checks[1].cure


async def test_queue_of_rabbitmq_with_other_arguments_is_found(services: Services) -> None:
    name, url = unique("doctor"), services.rabbitmq.url
    async with RabbitMQPublisher(url, name, topology=Topology(queues=(Queue(name),))):
        pass
    longer = Queue(name, max_length=5)
    publisher = RabbitMQPublisher(url, name, topology=Topology(queues=(longer,)))

    with pytest.raises(ConfigurationError, match="inequivalent arg 'x-max-length'"):
        await publisher.check_durability()


async def test_missing_stream_of_nats_is_found_and_not_created(services: Services) -> None:
    name = unique()

    found = await examined(publisher_from(services.nats.url, name))

    assert found["storage"].verdict == "warning"
    assert f"stream {name} is missing" in found["storage"].text
    async with jetstream(services.nats.url) as js:
        with pytest.raises(NotFoundError):
            await js.stream_info(name)


async def test_missing_topic_of_kafka_is_found_and_not_created(services: Services) -> None:
    name, url = unique("doctor."), services.kafka.url
    to_create = KafkaPublisher(url, name, config=KafkaConfig(partitions=2))

    strict, lenient = await examined(KafkaPublisher(url, name)), await examined(to_create)

    assert (strict["topics"].verdict, lenient["topics"].verdict) == ("fault", "warning")
    assert f"topic {name} is missing" in strict["topics"].text
    async with administering(url) as admin:
        assert name not in await admin.list_topics()


async def test_doctor_names_the_missing_queue_and_leaves_the_broker_as_it_was(
    services: Services,
) -> None:
    name = unique("doctor")
    settings = {"OUTBOX_TO": services.rabbitmq.url, "OUTBOX_DESTINATION": name}

    _, checks = await asyncio.to_thread(lambda: doctor(**settings))
    _, again = await asyncio.to_thread(lambda: doctor(**settings))

    assert checks == again
    found = {check["subject"]: check["text"] for check in checks}
    assert "answers" in found["broker"]
    assert f"exchange {name} is missing" in found["exchanges"]


@pytest.fixture
def database(services: Services) -> Iterator[Database]:
    with fresh_postgres(services) as made:
        prepare(made)
        yield made


async def test_postgres_that_forgets_or_cannot_clean_up_is_found_out(database: Database) -> None:
    name = database.url.rpartition("/")[2]
    database.run(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    engine = database.async_engine()

    async with engine.connect() as forgotten:
        await forgotten.execute(text("SELECT 1"))
        findings = await check_database(engine, old=timedelta(0))
        patient = await check_database(engine)
    await engine.dispose()

    found = {finding.subject: finding for finding in findings}
    assert found["synchronous_commit"].verdict == "warning"
    assert found["fsync"].verdict == "fine"
    assert found["transactions"].verdict == "warning"
    assert "pg_terminate_backend" in found["transactions"].cure
    assert "none is old" in [f.text for f in patient if f.subject == "transactions"]
