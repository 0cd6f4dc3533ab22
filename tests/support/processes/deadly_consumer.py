"""A consumer whose handler ends its process at one event, started again until it lives."""

from __future__ import annotations

import asyncio
import os
import traceback
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn
from uuid import UUID

from outrider import ConsumerConfig, EventConsumer, EventEnvelope
from outrider.ports import EventSource
from outrider.signals import EventDeadLettered, Signal

_DIED = 9
_MAX_STARTS = 12
_ID_BYTES = 16


@dataclass(eq=False)
class _Deadly:
    """Writes the id of each event that it has handled to a pipe."""

    poison: UUID
    missing: set[UUID]
    writer: int
    name: str = "deadly"
    done: asyncio.Event = field(default_factory=asyncio.Event)
    dead_letters: int = 0

    async def handle(self, envelope: EventEnvelope, /) -> None:
        if envelope.event_id == self.poison:
            os._exit(_DIED)
        os.write(self.writer, envelope.event_id.bytes)
        self.missing.discard(envelope.event_id)
        self._check()

    def on_signal(self, signal: Signal) -> None:
        self.dead_letters += isinstance(signal, EventDeadLettered)
        self._check()

    def _check(self) -> None:
        if self.dead_letters and not self.missing:
            self.done.set()


async def consume_until_it_lives(
    source: Callable[[], EventSource],
    batch: list[EventEnvelope],
    poison: EventEnvelope,
    after_death: Callable[[], Awaitable[object]],
) -> tuple[int, list[EventEnvelope]]:
    """How often the process died, and what was handled, in the order of the first time.

    Ends when the poison is a dead letter and all others were handled. `after_death` may spare the
    wait until the broker notices the death.
    """
    by_id = {envelope.event_id: envelope for envelope in batch}
    handled: dict[UUID, None] = {}
    for deaths in range(_MAX_STARTS):
        missing = by_id.keys() - handled.keys() - {poison.event_id}
        code, ids = await _start(source, poison.event_id, missing)
        handled |= dict.fromkeys(ids)
        if code != _DIED:
            assert code == 0, "the consumer failed"
            return deaths, [by_id[event_id] for event_id in handled]
        await after_death()
    raise AssertionError(f"it died {_MAX_STARTS} times")


async def _start(
    source: Callable[[], EventSource], poison: UUID, missing: set[UUID]
) -> tuple[int, list[UUID]]:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Forking a process with threads is deprecated: a lock may be held. The timeout shows that.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run(source, _Deadly(poison, missing, writer))
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = await asyncio.to_thread(pipe.read)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    ids = [UUID(bytes=found[at : at + _ID_BYTES]) for at in range(0, len(found), _ID_BYTES)]
    return os.waitstatus_to_exitcode(status), ids


def _run(source: Callable[[], EventSource], handler: _Deadly) -> NoReturn:
    async def consume() -> None:
        config = ConsumerConfig(prefetch=256)
        consumer = EventConsumer(source(), [("*", handler)], config, on_signal=handler.on_signal)
        async with asyncio.timeout(60), consumer:
            await handler.done.wait()

    try:
        asyncio.run(consume())
        os._exit(0)
    except BaseException:  # whatever it is, this process never returns to the test
        traceback.print_exc()
    finally:
        os._exit(1)
