"""python -m bench [part …]: all parts, or the named ones."""

from __future__ import annotations

import sys

from bench import (
    big_table,
    codec,
    jetstream,
    kafka,
    producer,
    rabbitmq_consume,
    rabbitmq_raw,
    redis_streams,
    relay,
)

PARTS = {
    "codec": codec.run,
    "producer": producer.run,
    "rabbitmq": rabbitmq_raw.run,
    "relay": relay.run,
    "big_table": big_table.run,
    "kafka": kafka.run,
    "nats": jetstream.run,
    "redis": redis_streams.run,
    "rabbitmq_consume": rabbitmq_consume.run,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
        return 2
    for name in names or PARTS:
        PARTS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
