"""The publisher: adds events in transactions, each as a whole or not at all."""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from outrider.brokers.redis.config import RedisConfig
from outrider.brokers.redis.connection import ConnectionPool, RedisConnection, pack, translate
from outrider.brokers.redis.durability import check_durability, check_groups
from outrider.brokers.redis.messages import to_fields
from outrider.errors import ConfigurationError, OutriderError
from outrider.lifecycle import Openable
from outrider.outcomes import (
    ACCEPTED,
    HELD_BACK,
    Deferred,
    Outcome,
    Refused,
    Unknown,
    raise_unless_accepted,
)
from outrider.settings.url_parameters import with_url_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.brokers.redis.connection import Command
    from outrider.events.envelope import EventEnvelope
    from outrider.ports import CheckResult

_BLOCK_BYTES: Final = 1024 * 1024
_MULTI: Final = pack(("MULTI",))
_EXEC: Final = pack(("EXEC",))
_OF_AGGREGATE: Final = frozenset({"aggregate_type", "aggregate_id"})


class _Block(NamedTuple):
    """Events of one transaction, by their index in the batch."""

    indexes: list[int]
    packed: list[bytes]


class RedisPublisher(Openable):
    """Adds events to one stream, or to several by a pattern such as `events.{aggregate_type}`.

    A batch is one transaction (MULTI); a large batch is several, one after the other. The server
    adds all events of a transaction or, when it is out of memory or read-only, none. So there is
    never a gap between the events of an aggregate. It connects with the first call, and again
    after the connection was lost; a call that is cancelled or times out drops its connection. Calls
    may overlap as long as no aggregate is in two of them.
    """

    def __init__(
        self, url: str, stream: str = "events", *, config: RedisConfig | None = None
    ) -> None:
        url, self._config = with_url_settings(url, config or RedisConfig())
        self._is_pattern = _check_pattern(stream)
        self._stream = stream if self._is_pattern else stream.format()
        self._pool = ConnectionPool(url, self._config, self._check)

    def __repr__(self) -> str:
        return f"<RedisPublisher {self._pool.address} stream {self._stream!r}>"

    async def open(self) -> None:
        """Connect, log in and check that this user may add to the stream.

        Raises BrokerUnavailable if waiting may help, ConfigurationError if it will not.
        """
        self._pool.open()
        async with self._pool.connection():
            pass

    async def close(self) -> None:
        """Events in flight become unknown; `open` makes the publisher usable again."""
        await self._pool.close()

    async def check_durability(self) -> list[CheckResult]:
        """Whether the server keeps what it acknowledged, and what groups of the stream lost."""
        groups = [] if self._is_pattern else await check_groups(self._pool, self._stream)
        return [*await check_durability(self._pool), *groups]

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        outcomes: list[Outcome | None] = [None] * len(envelopes)
        try:
            if envelopes:
                await self._add_all(envelopes, outcomes)
        except OutriderError as error:
            failed = Unknown(str(error), error)
            outcomes = [outcome or failed for outcome in outcomes]
        raise_unless_accepted([outcome or HELD_BACK for outcome in outcomes])

    async def _add_all(
        self, envelopes: Sequence[EventEnvelope], outcomes: list[Outcome | None]
    ) -> None:
        async with self._pool.connection() as connection:
            trim = await self._trim(connection)
            # Each block waits for the one before, which may hold back aggregates.
            for block in self._blocks(envelopes, outcomes, trim):
                await self._add(connection, block, outcomes)

    def _blocks(
        self, envelopes: Sequence[EventEnvelope], outcomes: list[Outcome | None], trim: Command
    ) -> Iterator[_Block]:
        block, size = _Block([], []), 0
        last: dict[tuple[str, str], int] = {}
        for index, envelope in enumerate(envelopes):
            aggregate = (envelope.aggregate_type, envelope.aggregate_id)
            before = last.get(aggregate)
            last[aggregate] = index
            if before is not None and outcomes[before] not in (None, ACCEPTED):
                outcomes[index] = HELD_BACK
                continue
            packed = self._pack(envelope, trim)
            if isinstance(packed, Refused):
                outcomes[index] = packed
                continue
            block.indexes.append(index)
            block.packed.append(packed)
            size += len(packed)
            if size >= _BLOCK_BYTES:
                yield block
                block, size = _Block([], []), 0
        if block.indexes:
            yield block

    def _pack(self, envelope: EventEnvelope, trim: Command) -> bytes | Refused:
        size, allowed = len(envelope.data), self._config.max_message_size
        if size > allowed:
            return Refused(f"not sendable: it has {size} bytes, {allowed} are allowed")
        try:
            fields = to_fields(envelope, self._config.cloudevents_source)
            return pack(("XADD", self._stream_of(envelope), *trim, "*", *fields))
        except UnicodeEncodeError:
            return Refused("not sendable: an attribute is no valid Unicode text")

    def _stream_of(self, envelope: EventEnvelope) -> str:
        if not self._is_pattern:
            return self._stream
        return self._stream.format(
            aggregate_type=envelope.aggregate_type, aggregate_id=envelope.aggregate_id
        )

    async def _add(
        self, connection: RedisConnection, block: _Block, outcomes: list[Outcome | None]
    ) -> None:
        packed = b"".join((_MULTI, *block.packed, _EXEC))
        *queued, added = await connection.exchange(packed, len(block.packed) + 2)
        if not isinstance(added, list):
            # The first error says why; the error of EXEC only says that there was one.
            self._pool.checked([*queued, added])
        for index, reply in zip(block.indexes, added, strict=True):
            outcomes[index] = self._outcome(reply)

    def _outcome(self, reply: Any) -> Outcome:
        """Such an error belongs to the stream: all events of an aggregate have the same one."""
        if isinstance(reply, bytes):
            return ACCEPTED
        error = translate(reply, self._pool.address)
        return Deferred(str(error), error)

    async def _trim(self, connection: RedisConnection) -> Command:
        if self._config.max_length is not None:
            return ("MAXLEN", "~", self._config.max_length)
        if self._config.max_age is not None:
            # By the clock of the server, which made the ids; our own clock may be wrong.
            [(seconds, _)] = self._pool.checked(await connection.ask(("TIME",)))
            oldest = int(seconds) - self._config.max_age.total_seconds()
            return ("MINID", "~", max(0, int(oldest * 1000)))
        return ()

    async def _check(self, connection: RedisConnection) -> None:
        """If only MULTI is forbidden, the server would add each event and then report an error."""
        attempt: Command = ("XADD", self._stream, "*", "data", "")
        self._pool.checked(await connection.ask(("MULTI",)))
        tried = () if self._is_pattern else (attempt,)
        self._pool.checked(await connection.ask(*tried, ("DISCARD",)))


def _check_pattern(stream: str) -> bool:
    """Whether the name depends on the event, which it may do by the aggregate alone."""
    try:
        parts = list(Formatter().parse(stream))
    except ValueError:
        parts = [("", "?", None, None)]
    names = {name for _, name, _, _ in parts if name is not None}
    plain = all(not spec and not conversion for _, _, spec, conversion in parts)
    if not stream or not plain or not names <= _OF_AGGREGATE:
        raise ConfigurationError(
            f"stream {stream!r}: expected a name, with {{aggregate_type}} or {{aggregate_id}} in it"
            " if events are to be spread; by anything else an aggregate would lose its order"
        )
    return bool(names)
