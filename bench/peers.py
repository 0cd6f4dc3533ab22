"""Outrider beside libraries from PyPI that do the same job, each in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aio_pika

from bench.databases import database
from bench.drivers.driver import Task
from bench.measure import Row, rows_of, save, show
from outrider.testing.services import Services
from outrider.testing.services.install.cache import cache_folder, locked

DRIVERS = Path(__file__).parent / "drivers"
EXCHANGE = "bench_peers"
AGGREGATES = 997
ORDER_AGGREGATES = 97
"""Fewer, so that most events have another one of their aggregate close behind them."""
FAILING = 0.05
SECONDS = 240.0
TUNED, DEFAULT = "tuned", "default"
CLIENTS = ("aio-pika==10.2.1", "asyncpg==0.32.0")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library, how to get it, and by how much the table is shortened for a slow one."""

    name: str
    requirements: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    shorter: int = 1

    @property
    def script(self) -> Path:
        return DRIVERS / f"with_{self.name.replace('-', '_')}.py"


OUTRIDER = Peer(name="outrider")
PEERS = (
    Peer(name="txoutbox", requirements=("txoutbox==0.2.2",)),
    Peer(name="pgqueuer", requirements=("pgqueuer==1.6.0",)),
    Peer(
        name="faststream-outbox",
        requirements=("faststream-outbox==0.19.0", "faststream[rabbit]==0.7.8"),
        shorter=4,
    ),
    Peer(name="omni-box", requirements=("omni-box[postgres]==0.3.1",), python=(3, 12), shorter=4),
    Peer(
        name="procrastinate",
        requirements=("procrastinate==3.10.0", "psycopg[binary]==3.3.8"),
        shorter=20,
    ),
)


class CannotRun(Exception):
    """This peer cannot be installed or run here; the text says why."""


def interpreter(peer: Peer) -> str:
    """Of an environment with this library and nothing else; made if it is not there yet."""
    if not peer.requirements:
        return sys.executable
    wanted = "\n".join((*peer.requirements, *CLIENTS))
    folder = cache_folder() / "peers" / peer.name
    found, made = folder / "bin" / "python", folder / "requirements.txt"
    with locked(f"peer-{peer.name}"):
        if not (made.exists() and made.read_text() == wanted):
            shutil.rmtree(folder, ignore_errors=True)
            _call(_python(peer.python), "-m", "venv", str(folder))
            pip = (str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            _call(*pip, *peer.requirements, *CLIENTS)
            made.write_text(wanted)
    return str(found)


def _python(least: tuple[int, int]) -> str:
    """The one that runs this, or a newer one if a library asks for it."""
    newer = [f"python3.{minor}" for minor in range(least[1], least[1] + 4)]
    for name in [sys.executable, *newer]:
        check = f"import sys; sys.exit(sys.version_info < {least})"
        try:
            if (
                subprocess.run([name, "-c", check], capture_output=True, check=False).returncode
                == 0
            ):
                return name
        except FileNotFoundError:
            continue
    raise CannotRun(f"needs Python {least[0]}.{least[1]}, and none is on the PATH")


def _call(*command: str, stdin: str = "", seconds: float = 600) -> str:
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=True, timeout=seconds
        )
    except subprocess.CalledProcessError as error:
        raise CannotRun((error.stderr.strip().splitlines() or ["no message"])[-1]) from error
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"did not end within {seconds:g} s") from error
    return done.stdout


class Bench:
    """One PostgreSQL and one RabbitMQ; each measurement has a database and a queue of its own."""

    def __init__(self, services: Services) -> None:
        self.postgres, self.amqp = services.postgres.url, services.rabbitmq.url

    def drive(self, peer: Peer, **task: Any) -> dict[str, Any]:
        """What the driver found, in a new database and with an empty queue."""
        asyncio.run(self.arrived())
        with database(self.postgres, "bench_peer") as url:
            asked = Task(postgres=url, exchange=EXCHANGE, seconds=SECONDS, **task)
            command = (interpreter(peer), str(peer.script))
            out = _call(*command, stdin=json.dumps(asdict(asked)), seconds=SECONDS + 120)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def rate(self, peer: Peer, *, tuned: bool, to_broker: bool, count: int) -> float:
        count = max(100, count // peer.shorter)
        amqp = self.amqp if to_broker else None
        found = self.drive(peer, amqp=amqp, count=count, aggregates=AGGREGATES, tuned=tuned)
        return float((count - found["left"]) / found["seconds"])

    def order(self, peer: Peer, *, tuned: bool, count: int) -> dict[str, int]:
        """What arrives when one event in twenty fails the first time it is tried."""
        failing = random.Random(7).sample(range(count), int(count * FAILING))
        self.drive(
            peer,
            amqp=self.amqp,
            count=count,
            aggregates=ORDER_AGGREGATES,
            tuned=tuned,
            failing=failing,
        )
        return judge(asyncio.run(self.arrived()), count)

    async def arrived(self) -> list[tuple[int, int]]:
        """Empty the queue: the aggregate and the number of each event, as they came."""
        found: list[tuple[int, int]] = []
        async with await aio_pika.connect(self.amqp) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(
                EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True
            )
            queue = await channel.declare_queue(EXCHANGE, durable=True)
            await queue.bind(exchange, "#")
            if waiting := queue.declaration_result.message_count or 0:
                async with queue.iterator(no_ack=True) as messages:
                    async for message in messages:
                        body = json.loads(message.body)
                        found.append((body["aggregate"], body["number"]))
                        if len(found) == waiting:
                            break
        return found


def judge(arrived: Sequence[tuple[int, int]], count: int) -> dict[str, int]:
    """Late is an event that came after a later one of its aggregate."""
    last: dict[int, int] = {}
    seen: set[int] = set()
    late = 0
    for aggregate, number in arrived:
        if number not in seen:
            late += number < last.get(aggregate, -1)
            last[aggregate] = max(number, last.get(aggregate, -1))
        seen.add(number)
    return {"late": late, "lost": count - len(seen), "twice": len(arrived) - len(seen)}


Cases = dict[str, tuple[Peer, bool]]


def _cases(peers: Sequence[Peer], variants: Sequence[str]) -> Cases:
    return {
        f"{peer.name}, {variant}": (peer, variant == TUNED)
        for peer in peers
        for variant in variants
    }


def _usable(bench: Bench, peers: Sequence[Peer]) -> tuple[list[Peer], dict[str, str]]:
    """Those that run here, tried with a few events, and why the others do not."""
    usable, missing = [OUTRIDER], {}
    for peer in peers:
        try:
            bench.rate(peer, tuned=False, to_broker=True, count=100)
            usable.append(peer)
        except CannotRun as problem:
            missing[peer.name] = str(problem)
    return usable, missing


def throughput(bench: Bench, cases: Cases, rounds: int, count: int) -> dict[str, list[Row]]:
    """Each measurement is a process of its own, so that no round is needed to warm up."""
    rates: dict[str, dict[str, list[float]]] = {
        sink: {name: [] for name in cases} for sink in ("to nowhere", "to RabbitMQ")
    }
    for _ in range(rounds):
        for name, (peer, tuned) in cases.items():
            for sink, found in rates.items():
                to_broker = sink == "to RabbitMQ"
                found[name].append(bench.rate(peer, tuned=tuned, to_broker=to_broker, count=count))
    return {sink: rows_of(found, [f"{OUTRIDER.name}, {TUNED}"]) for sink, found in rates.items()}


def run(
    rounds: int = 3,
    count: int = 40_000,
    failing_of: int = 2_000,
    peers: Sequence[Peer] = PEERS,
    variants: Sequence[str] = (TUNED, DEFAULT),
    services: Services | None = None,
) -> dict[str, list[Row]]:
    with ExitStack() as stack:
        bench = Bench(services or stack.enter_context(Services()))
        usable, missing = _usable(bench, peers)
        cases = _cases(usable, variants)
        tables = throughput(bench, cases, rounds, count)
        order = {
            name: bench.order(peer, tuned=tuned, count=failing_of)
            for name, (peer, tuned) in cases.items()
        }
    _tell(tables, order, missing)
    settings = {"rounds": rounds, "count": count, "failing_of": failing_of, "order": order}
    versions = {peer.name: ", ".join(peer.requirements) for peer in usable[1:]}
    save("peers", tables, {**settings, "versions": versions, "missing": missing})
    return tables


def _tell(
    tables: dict[str, list[Row]], order: dict[str, dict[str, int]], missing: dict[str, str]
) -> None:
    for title, rows in tables.items():
        show(f"{title}, events of 300 bytes over {AGGREGATES} aggregates", rows)
    print("\none worker, one event in twenty fails once")
    for name, found in order.items():
        print(f"  {name:<28}{found}")
    for name, why in missing.items():
        print(f"  {name} is missing: {why}")
