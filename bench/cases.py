"""The names of measured cases that figures quote; a script and the report use the same ones."""

from __future__ import annotations

# producer
ASYNC_POSTGRES = "PostgreSQL, AsyncSession, asyncpg"
ALONE, BY_HAND = "business alone", "INSERT by hand"
# The outbox with its default settings, which wake relays up after the commit.
ONE_EVENT, TEN_EVENTS = "one event", "ten events"
ONE_EVENT_NO_WAKE_UP = "one event, no wake-up"
NOTIFY_INSIDE = "by hand, NOTIFY inside"

# relay, and the same to other brokers: with default settings, and with larger batches
TO_RABBITMQ, TO_NOWHERE = "to RabbitMQ", "to nowhere"
ONE_BY_ONE = "claim 100, one by one"
AIO_PIKA = "aio-pika, no database"
BARE_FRAMES = "bare claim, frames, settle"
FRAMES = "frames by hand, no database"
BARE_NOOP = "bare claim, settle"
AIOKAFKA_SEND = "aiokafka send, no database"
BARE_KAFKA = "bare claim, send, settle"
NATS_PIPELINED = "pipelined, no database"
BARE_NATS = "bare claim, publish, settle"
REDIS_PIPELINE = "redis-py pipeline, no database"
BARE_REDIS = "bare claim, packed, settle"
COMMIT_TO_CONSUMER = "commit to consumer"


def outrider_to(sink: str) -> str:
    return f"outrider to {sink}"


def outrider_tuned(sink: str) -> str:
    return f"outrider to {sink}, batches of 1,000"


# consume
RAW_CLIENT = "raw client, nothing done"
INBOX_BY_HAND = "raw client, inbox by hand"
CONSUMER = "EventConsumer, nothing done"
CONSUMER_WITH_INBOX = "EventConsumer, SqlInbox"

# big_table
BIG_TABLE, EMPTY_TABLE = "big table", "empty table"


def filled_table(published: int, pending: int) -> str:
    return f"{published:,} published, {pending:,} pending"


# scaling
SLOW_BROKER = "slow broker"


def relays(number: int) -> str:
    return f"{number} relay{'s' if number > 1 else ''}"


# drain, horizon
FIRST_QUARTER, LAST_QUARTER = "first quarter", "last quarter"
FREE, PINNED = "free", "horizon pinned"

# codec
JSON_ONE_LINER, SERIALIZE = "json.dumps(asdict)", "serialize_event"
SMALL_EVENT, LARGE_EVENT = "small event → JSON", "order with 8 lines → JSON"
