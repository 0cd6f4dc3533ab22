"""All that a network does to relays and consumers; events arrive all the same, and in order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import make_url

from outrider.testing.services import Services
from tests.support.databases import create_database
from tests.support.faults.effects import assert_once_and_in_order, effects_database, effects_in
from tests.support.faults.flow import BATCH, LOOPS, Flow, flowing
from tests.support.faults.linked_kafka import LinkedKafka
from tests.support.faults.proxies import Proxies, link_to, links_to
from tests.support.faults.scoreboard import Scoreboard
from tests.support.faults.weather import Weather
from tests.support.limits import FULL, SEED
from tests.support.processes.effects_app import prepare_broker
from tests.support.processes.linked_relay import COMMAND, LONGEST_CALL
from tests.support.processes.relay_process import RelayProcess
from tests.support.until import until

FAULTS, FAULTS_TO_THE_END = (500, 60) if FULL else (8, 3)
RELAYS, AGGREGATES = 2, 60
CONSUME = ("consume", "tests.support.processes.effects_app:consumer")

pytestmark = pytest.mark.faults


def by_way_of(links: Proxies, database: str, broker: str) -> dict[str, str]:
    return {
        "DATABASE_URL": links["database"].url(database),
        "LISTEN_URL": links["notifications"].url(database),
        "OUTBOX_TO": links["broker"].url(broker),
    }


def connections_in(services: Services, database: str) -> int:
    name = make_url(database).database
    # This process has one of its own, which wakes relays up and is kept for a while.
    others = f"datname = '{name}' and query not like 'NOTIFY%'"
    return int(services.postgres.psql(f"select count(*) from pg_stat_activity where {others}"))  # noqa: S608


def longest_call(flow: Flow) -> float:
    found = [re.findall(f"{LONGEST_CALL}(.+) s", relay.text) for relay in flow.relays]
    return max(float(said) for each in found for said in each)


async def nothing_is_left(services: Services, links: Proxies, *databases: str) -> None:
    await until(lambda: not any(link.connections for link in links.values()), "links are free")
    for database in databases:
        await until(lambda: not connections_in(services, database), "no connection is left")  # noqa: B023


@pytest.mark.fault("R3", "D5", "D6", "D12", "B9", "B11", line="S-5")
async def test_network_faults_lose_nothing_and_keep_the_order(
    services: Services, tmp_path: Path, scoreboard: Scoreboard
) -> None:
    database, broker = create_database(services), services.rabbitmq.url
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
            await weather.rage(FAULTS, flow.reader.count)
            await flow.writers.stopped()
            await flow.arrived()

            # then
            assert [relay.pid for relay in relays if relay.is_alive] == before
            verdict = await flow.verdict()
            print(f"{weather}; longest call {longest_call(flow):.2f} s")
            in_hand = (FAULTS + flow.lost_leases) * RELAYS * LOOPS * BATCH
            await flow.report(verdict, scoreboard, "S-5", faults=FAULTS, bound=in_hand)
            assert verdict.holds(duplicates=in_hand), f"{verdict}; OUTRIDER_SEED={SEED}"
        await nothing_is_left(services, links, database)


@pytest.mark.fault("D5", "B9")
@pytest.mark.parametrize("kind", ["rabbitmq", "kafka", "nats", "redis"] if FULL else ["redis"])
async def test_network_faults_up_to_the_consumers_database_leave_each_effect_once_and_in_order(
    services: Services, tmp_path: Path, kind: str
) -> None:
    database, effects = create_database(services), await effects_database(services)
    urls = {"database": database, "notifications": database, "effects": effects}
    async with broker_behind_links(services, kind) as (broker, ways), links_to(**urls) as links:
        links.update(ways)
        name = f"flow{uuid4().hex[:12]}"
        settings = {
            **by_way_of(links, database, broker),
            "OUTBOX_DESTINATION": name,
            "EFFECTS_DATABASE": links["effects"].url(effects),
        }
        flow = Flow(database, services.rabbitmq.url, tmp_path, settings)
        flow.command, processes, counter = COMMAND, [], Counter(effects)
        try:
            # given
            await flow.prepare(AGGREGATES, "#")
            await prepare_broker(broker, name)
            settings["OUTBOX_TO"] = links.get("consumers", links["broker"]).url(broker)
            for number in range(2):
                log = tmp_path / f"consumer-{number}.log"
                processes.append(RelayProcess(settings, log, CONSUME))
            await until(lambda: all(p.is_ready for p in processes), "consumers have started")
            processes += await flow.start_relays(1)
            before = [process.pid for process in processes]
            flow.writers.start(writers=2, pause=0.05)

            # when
            weather = Weather(links, SEED)
            await weather.rage(FAULTS_TO_THE_END, counter.count)
            await flow.writers.stopped()

            async def complete() -> bool:
                return await counter.count() >= len(flow.writers.committed)

            await until(complete, "everything took effect")

            # then
            print(f"{kind}: {weather}")
            assert [process.pid for process in processes if process.is_alive] == before
            assert_once_and_in_order(flow, await effects_in(effects))
            for process in processes:
                process.terminate()
            await until(lambda: not any(p.is_alive for p in processes), "all end when asked")
        except BaseException:
            for process in processes:
                print(f"--- {process.log.name}\n{process.text[-3000:]}")
            raise
        finally:
            for process in processes:
                process.kill()
            await counter.close()
            await flow.close()
        await nothing_is_left(services, links, database, effects)


class Counter:
    """How many effects there are, asked often."""

    def __init__(self, url: str) -> None:
        self._url, self._link = url.replace("+asyncpg", ""), None

    async def count(self) -> int:
        self._link = self._link or await asyncpg.connect(self._url)
        return int(await self._link.fetchval("SELECT count(*) FROM effects"))

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()


@asynccontextmanager
async def broker_behind_links(services: Services, kind: str) -> AsyncIterator[tuple[str, Proxies]]:
    """The URL of a broker, and links to it."""
    if kind == "kafka":  # says itself where its clients go, so that there is one link for all
        server = await asyncio.to_thread(services.another, LinkedKafka)
        async with link_to(server.url, server.link_port) as link:
            yield server.url, {"broker": link}
        await asyncio.to_thread(server.stop)
    else:
        url = getattr(services, kind).url
        async with links_to(broker=url, consumers=url) as links:
            yield url, links
