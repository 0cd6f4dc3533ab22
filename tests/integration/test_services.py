"""The private servers: they answer, keep their data, and can be killed, paused and proven ours."""

import asyncio
import time
import uuid

import aio_pika
import aiokafka
import asyncpg
import nats
import pytest
import redis.asyncio

from outrider.testing.services import KINDS, NotOurs, Server, Services, keeper
from tests.support.until import wait_until


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, services: Services) -> Server:
    return services.victim(request.param)


def test_server_gives_back_what_a_client_put_into_it(server: Server) -> None:
    # given
    key = uuid.uuid4().hex

    # when
    put(server, key, b"precious")

    # then
    assert get(server, key) == b"precious"


def test_data_survive_kill_and_start_on_the_same_url(server: Server) -> None:
    # given
    key, url = uuid.uuid4().hex, server.url
    put(server, key, b"precious")
    victims = keeper.processes_in(server.folder)

    # when
    server.kill()

    # then
    assert victims
    assert not server.alive
    assert not keeper.processes_in(server.folder)

    # when
    server.start()

    # then
    assert server.url == url
    assert get(server, key) == b"precious"


def test_data_survive_restart_that_needs_no_force(server: Server) -> None:
    # given
    key = uuid.uuid4().hex
    put(server, key, b"precious")
    before = keeper.processes_in(server.folder)
    began = time.monotonic()

    # when
    server.restart()

    # then: it was not left to be killed at the deadline
    assert time.monotonic() - began < server.deadline / 2
    assert before.isdisjoint(keeper.processes_in(server.folder))
    assert get(server, key) == b"precious"


def test_paused_server_is_silent_until_resumed(server: Server) -> None:
    # given
    key = uuid.uuid4().hex
    put(server, key, b"precious")

    # when
    server.pause()

    # then
    assert server.alive
    assert not server.answers()

    # when
    server.resume()

    # then
    assert wait_until(server.answers, within=30)
    assert get(server, key) == b"precious"


def test_own_passes_for_the_server_of_this_run(server: Server) -> None:
    server.own()


def test_own_wants_an_answer_that_names_this_run(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(type(server), "mark", "the mark of another run")

    # then
    with pytest.raises(NotOurs, match=r"not the \w+ of this run"):
        server.own()


def put(server: Server, key: str, value: bytes) -> None:
    asyncio.run(asyncio.wait_for(CLIENTS[server.kind][0](server, key, value), 60))


def get(server: Server, key: str) -> bytes | None:
    return asyncio.run(asyncio.wait_for(CLIENTS[server.kind][1](server, key), 60))


async def put_into_postgres(server: Server, key: str, value: bytes) -> None:
    connection = await asyncpg.connect(server.url)
    await connection.execute("create table if not exists kept (key text, value bytea)")
    await connection.execute("insert into kept values ($1, $2)", key, value)
    await connection.close()


async def get_from_postgres(server: Server, key: str) -> bytes | None:
    connection = await asyncpg.connect(server.url)
    value: bytes | None = await connection.fetchval("select value from kept where key = $1", key)
    await connection.close()
    return value


async def put_into_rabbitmq(server: Server, key: str, value: bytes) -> None:
    async with await aio_pika.connect(server.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(key, durable=True)
        message = aio_pika.Message(value, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, routing_key=key)


async def get_from_rabbitmq(server: Server, key: str) -> bytes | None:
    async with await aio_pika.connect(server.url) as connection:
        queue = await (await connection.channel()).get_queue(key)
        message = await queue.get(no_ack=True, fail=False)
        return message.body if message else None


async def put_into_redis(server: Server, key: str, value: bytes) -> None:
    async with redis.asyncio.from_url(server.url) as client:
        await client.set(key, value)


async def get_from_redis(server: Server, key: str) -> bytes | None:
    async with redis.asyncio.from_url(server.url) as client:
        value = await client.get(key)
        assert value is None or isinstance(value, bytes)
        return value


async def put_into_nats(server: Server, key: str, value: bytes) -> None:
    async with await nats.connect(server.url) as client:
        await client.jetstream().add_stream(name=key, subjects=[key])
        await client.jetstream().publish(key, value)


async def get_from_nats(server: Server, key: str) -> bytes | None:
    async with await nats.connect(server.url) as client:
        return (await client.jetstream().get_msg(key, seq=1)).data


async def put_into_kafka(server: Server, key: str, value: bytes) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=server.address, acks="all") as producer:
        await producer.send_and_wait(key, value)


async def get_from_kafka(server: Server, key: str) -> bytes | None:
    consumer = aiokafka.AIOKafkaConsumer(
        key, bootstrap_servers=server.address, auto_offset_reset="earliest"
    )
    async with consumer:
        value: bytes | None = (await consumer.getone()).value
        return value


CLIENTS = {
    "postgres": (put_into_postgres, get_from_postgres),
    "rabbitmq": (put_into_rabbitmq, get_from_rabbitmq),
    "redis": (put_into_redis, get_from_redis),
    "nats": (put_into_nats, get_from_nats),
    "kafka": (put_into_kafka, get_from_kafka),
}
