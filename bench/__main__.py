"""python -m bench [part …]: all parts, or the named ones."""

from __future__ import annotations

import sys

from bench import big_table, codec, kafka, producer, rabbitmq_raw, relay

PARTS = {
    "codec": codec.run,
    "producer": producer.run,
    "rabbitmq": rabbitmq_raw.run,
    "relay": relay.run,
    "big_table": big_table.run,
    "kafka": kafka.run,
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
