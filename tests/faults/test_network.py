"""All that a network does to relays and consumers; events arrive all the same, and in order."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from outrider.testing.link import FaultyLink
from outrider.testing.services import Services
from tests.faults.flow import BATCH, FULL, LOOPS, SEED, Flow, flowing, fresh_database, until
from tests.faults.linked_relay import COMMAND, LONGEST_CALL
from tests.faults.weather import Weather

FAULTS = 500 if FULL else 10
RELAYS = 2

pytestmark = pytest.mark.faults


@asynccontextmanager
async def links_to(**urls: str) -> AsyncIterator[dict[str, FaultyLink]]:
    async with AsyncExitStack() as stack:
        links = {}
        for name, url in urls.items():
            address = urlsplit(url)
            link = FaultyLink(address.hostname or "", address.port or 0)
            links[name] = await stack.enter_async_context(link)
        yield links


def by_way_of(links: dict[str, FaultyLink], database: str, broker: str) -> dict[str, str]:
    return {
        "DATABASE_URL": links["database"].url(database),
        "LISTEN_URL": links["notifications"].url(database),
        "OUTBOX_TO": links["broker"].url(broker),
    }


def connections_in(services: Services, database: str) -> int:
    name = make_url(database).database
    count = f"select count(*) from pg_stat_activity where datname = '{name}'"  # noqa: S608
    return int(services.postgres.psql(count))


def longest_call(flow: Flow) -> float:
    found = [re.findall(f"{LONGEST_CALL}(.+) s", relay.text) for relay in flow.relays]
    return max(float(said) for each in found for said in each)


@pytest.mark.fault("R3", "D5", "D6", "D12", "B9", "B11")
async def test_network_faults_lose_nothing_and_keep_the_order(
    services: Services, tmp_path: Path
) -> None:
    database, broker = fresh_database(services), services.rabbitmq.url
    async with links_to(database=database, notifications=database, broker=broker) as links:
        through = by_way_of(links, database, broker)
        async with flowing(database, broker, tmp_path, **through) as flow:
            # given
            flow.command = COMMAND
            await flow.reader.start()
            relays = await flow.start_relays(RELAYS)
            before = [relay.pid for relay in relays]
            flow.writers.start(writers=4, pause=0.02)

            # when
            weather = Weather(links, SEED)
            await weather.rage(FAULTS, lambda: len(flow.reader.deliveries))
            await flow.writers.stopped()
            await flow.arrived()

            # then
            assert [relay.pid for relay in relays if relay.is_alive] == before
            verdict = await flow.verdict()
            print(f"{weather}; longest call {longest_call(flow):.2f} s")
            in_hand = (FAULTS + flow.lost_leases) * RELAYS * LOOPS * BATCH
            assert verdict.holds(duplicates=in_hand), f"{verdict}; OUTRIDER_SEED={SEED}"
        await until(lambda: not any(link.connections for link in links.values()), "links are free")
        await until(lambda: connections_in(services, database) == 0, "no connection is left")
