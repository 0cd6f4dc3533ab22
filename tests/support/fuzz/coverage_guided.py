"""The decoders under atheris, which looks for input that reaches new code; it is no dependency.

python -m tests.support.fuzz.coverage_guided NAME -max_total_time=600 -max_len=4096
    -rss_limit_mb=512
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["outrider", "pamqp"]):
    from tests.support.fuzz import decoders


def rabbitmq_message(data: bytes) -> None:
    size = int.from_bytes(data[:1], "big")
    decoders.rabbitmq_message(data[1 : 1 + size], data[1 + size :])


def redis_entry(data: bytes) -> None:
    words = data.split(b"\0")
    decoders.redis_entry(words[: len(words) // 2 * 2])


TARGETS = {
    "envelope_json": decoders.envelope_json,
    "cloud_event_json": decoders.cloud_event_json,
    "stored_event": lambda data: decoders.stored_event("order.placed", data, 1),
    "rabbitmq_message": rabbitmq_message,
    "redis_entry": redis_entry,
}

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
