"""Redis Streams, of Redis from 6.2 on or Valkey: one server, no cluster, no Sentinel.

Accepted means that the server has added the event to its stream; its setting `appendfsync` decides
whether that survives a crash of the server. A source receives in order, one process at a time. What
it cannot do: when the connection breaks, tell whether events in flight were added. Such events may
arrive twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.errors import ConfigurationError

try:
    import hiredis as _parser  # noqa: F401
    import redis as _client  # noqa: F401
except ImportError as missing:
    raise ConfigurationError(
        f"{missing.name} is missing: pip install 'outrider[redis]'"
    ) from missing

from outrider.brokers.event_bus import BrokerEventBus
from outrider.brokers.redis.config import RedisConfig
from outrider.brokers.redis.publisher import RedisPublisher
from outrider.brokers.redis.source import RedisSource
from outrider.observability.logging import log_signals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outrider.consumer.consumer import ConsumerConfig
    from outrider.consumer.scopes import ScopeFactory
    from outrider.ports import EventHandler, Inbox
    from outrider.signals import OnSignal


class RedisEventBus(BrokerEventBus):
    """An event bus over one Redis stream, for all processes that know it.

    `group` is the name under which these handlers receive: each group gets every event once.
    """

    def __init__(
        self,
        url: str,
        stream: str = "events",
        handlers: Iterable[tuple[str, EventHandler]] = (),
        *,
        group: str,
        config: RedisConfig | None = None,
        consumer: ConsumerConfig | None = None,
        scope: ScopeFactory | None = None,
        inbox: Inbox | None = None,
        on_signal: OnSignal | None = log_signals,
    ) -> None:
        super().__init__(
            RedisPublisher(url, stream, config=config),
            RedisSource(url, stream, group=group, config=config),
            handlers,
            consumer,
            scope=scope,
            inbox=inbox,
            on_signal=on_signal,
        )


__all__ = ["RedisConfig", "RedisEventBus", "RedisPublisher", "RedisSource"]
