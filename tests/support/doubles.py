"""Stands in for what surrounds the code under test: a sink, a handler, a receiver of signals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

from outrider import EventEnvelope
from outrider.outcomes import ACCEPTED, Outcome, Unknown, raise_unless_accepted
from outrider.signals import Signal
from tests.support.limits import MAX_WAIT_S


class RecordingSink:
    """A publisher that keeps what it accepts; `answer` decides about each event.

    As every publisher promises, it accepts no event of an aggregate after one that it did not
    accept. `before` is called with each batch, before any event of it is accepted.
    """

    def __init__(self, answer: Callable[[EventEnvelope], Outcome] = lambda _: ACCEPTED) -> None:
        self.answer = answer
        self.got: list[EventEnvelope] = []
        self.closed = 0
        self.before: Callable[[], Any] = lambda: asyncio.sleep(0)

    async def open(self) -> None: ...

    async def close(self) -> None:
        self.closed += 1

    def __str__(self) -> str:
        return "scripted sink"

    async def publish(self, envelope: EventEnvelope, /) -> None:
        await self.publish_all([envelope])

    async def publish_all(self, envelopes: Sequence[EventEnvelope], /) -> None:
        answer = self.before()
        if isawaitable(answer):
            await answer
        outcomes: list[Outcome] = []
        stopped: set[str] = set()
        for envelope in envelopes:
            held = envelope.aggregate_id in stopped
            outcome = Unknown("held back") if held else self.answer(envelope)
            if outcome is ACCEPTED:
                self.got.append(envelope)
            else:
                stopped.add(envelope.aggregate_id)
            outcomes.append(outcome)
        raise_unless_accepted(outcomes)

    def has(self, count: int) -> bool:
        return len({e.event_id for e in self.got}) == count

    def of(self, aggregate: int) -> list[int]:
        return [e.payload["n"] for e in self.got if e.aggregate_id == str(aggregate)]


class RecordingHandler:
    """A handler that keeps what it handled, after `work` is done."""

    def __init__(
        self, work: Callable[[EventEnvelope], Awaitable[Any]] | None = None, name: str = "handler"
    ) -> None:
        self.name, self._work = name, work
        self.calls = 0
        self.handled: list[EventEnvelope] = []

    async def handle(self, envelope: EventEnvelope, /) -> None:
        self.calls += 1
        if self._work is not None:
            await self._work(envelope)
        self.handled.append(envelope)


class SignalRecorder:
    """Keeps all signals, and waits for more."""

    def __init__(self, also: Callable[[Signal], None] = lambda _: None) -> None:
        self.seen: list[Signal] = []
        self._also = also
        self._changed = asyncio.Event()

    def __call__(self, signal: Signal) -> None:
        self._also(signal)
        self.seen.append(signal)
        self._changed.set()

    def of(self, *kinds: type) -> list[Any]:
        return [signal for signal in self.seen if isinstance(signal, kinds)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Check the condition after each signal."""
        async with asyncio.timeout(MAX_WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
