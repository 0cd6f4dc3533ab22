"""Redis Streams, of Redis from 6.2 on or Valkey: one server, no cluster, no Sentinel.

Accepted means that the server has added the event to its stream; its setting `appendfsync` decides
whether that survives a crash of the server. A source receives in order, one process at a time. What
it cannot do: when the connection breaks, tell whether events in flight were added. Such events may
arrive twice.
"""

from __future__ import annotations

from outrider.errors import ConfigurationError

try:
    import hiredis as _parser  # noqa: F401
    import redis as _client  # noqa: F401
except ImportError as missing:
    raise ConfigurationError(
        f"{missing.name} is missing: pip install 'outrider[redis]'"
    ) from missing

from outrider.brokers.redis.config import RedisConfig
from outrider.brokers.redis.publisher import RedisPublisher
from outrider.brokers.redis.source import RedisSource

__all__ = ["RedisConfig", "RedisPublisher", "RedisSource"]
