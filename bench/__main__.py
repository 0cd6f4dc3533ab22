"""python -m bench [part …] [option=number …]: all parts, or the named ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bench import (
    big_table,
    codec,
    consume,
    drain,
    horizon,
    jetstream,
    kafka,
    peers,
    producer,
    rabbitmq_raw,
    redis_streams,
    relay,
    scaling,
)

PARTS: dict[str, Callable[..., Any]] = {
    "codec": codec.run,
    "producer": producer.run,
    "rabbitmq": rabbitmq_raw.run,
    "relay": relay.run,
    "big_table": big_table.run,
    "kafka": kafka.run,
    "nats": jetstream.run,
    "redis": redis_streams.run,
    "consume": consume.run,
    "scaling": scaling.run,
    "horizon": horizon.run,
    "drain": drain.run,
    "peers": peers.run,
}


def main(arguments: list[str]) -> int:
    names = [word for word in arguments if "=" not in word]
    options = {
        name: int(value) for name, _, value in (w.partition("=") for w in arguments) if value
    }
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
        return 2
    for name in names or PARTS:
        PARTS[name](**options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
