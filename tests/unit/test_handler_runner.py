"""Calling handlers: whatever one does, it is a failed handler and nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import uuid4

import pytest

from outrider import ConfigurationError, DatabaseUnavailable, DecodeError, EventEnvelope, Handlers
from outrider.consumer.handler_runner import HandlerRunner
from outrider.consumer.inbox import IdempotentHandler, MemoryProcessedEvents
from outrider.consumer.scopes import ObjectScope, Scope, current_scope
from outrider.observability.opentelemetry import TracedHandler
from outrider.ports import EventHandler
from outrider.signals import EventHandled, Signal
from tests.support.doubles import RecordingHandler
from tests.support.shop import AccountOpened

QUICK = timedelta(milliseconds=20)


def created() -> EventEnvelope:
    return AccountOpened(account_id=uuid4(), email="a@example.org").to_envelope()


async def fine(_: EventEnvelope) -> None:
    """Takes part in nothing."""


async def hangs(_: EventEnvelope) -> None:
    await asyncio.Event().wait()


async def swallows_cancellation(_: EventEnvelope) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def never_ends(_: EventEnvelope) -> None:
    for _attempt in range(2):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def cancels_itself(_: EventEnvelope) -> None:
    raise asyncio.CancelledError


async def exits(_: EventEnvelope) -> None:
    raise SystemExit(3)


async def interrupts(_: EventEnvelope) -> None:
    raise KeyboardInterrupt


async def cancels_its_task(_: EventEnvelope) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.fault("E11", "E12", "E13", "E14")
@pytest.mark.parametrize(
    "work",
    [hangs, swallows_cancellation, cancels_itself, exits, interrupts, cancels_its_task],
    ids=lambda work: work.__name__,
)
async def test_misbehaving_handler_fails_alone(work: Callable[..., Awaitable[None]]) -> None:
    bad, good = RecordingHandler(work, "bad"), RecordingHandler(fine, "good")
    calls = HandlerRunner(timeout=QUICK)

    failures = await calls.deliver(created(), [bad, good])

    assert [(f.handler, f.verdict) for f in failures] == [("bad", "count")]
    assert good.calls == 1


@pytest.mark.fault("E11", "E12")
async def test_handler_that_cannot_be_ended_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outrider.consumer.handler_runner._CANCEL_TIMEOUT_S", 0.01)
    calls = HandlerRunner(timeout=QUICK)

    failures = await calls.deliver(created(), [RecordingHandler(never_ends, "bad")])

    assert "took longer" in failures[0].reason
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.fault("E11")
async def test_reason_says_where_a_handler_hung() -> None:
    [failure] = await HandlerRunner(timeout=QUICK).deliver(
        created(), [RecordingHandler(hangs, "bad")]
    )

    assert failure.reason.startswith("bad: HandlerMisbehaved: took longer than 0.02 s, at ")
    places = failure.reason.partition(", at ")[2].split(", ")
    assert [place.rpartition(" in ")[2] for place in places] == ["hangs", "RecordingHandler.handle"]


async def test_our_own_cancellation_ends_the_handler_and_goes_on() -> None:
    started, ended = asyncio.Event(), []

    async def work(_: EventEnvelope) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    calling = asyncio.create_task(HandlerRunner().deliver(created(), [RecordingHandler(work, "h")]))
    await started.wait()
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended == [True]


async def test_only_those_that_failed_run_again_until_the_event_is_forgotten() -> None:
    troubles = iter([ValueError("once")])

    async def fails_once(_: EventEnvelope) -> None:
        if trouble := next(troubles, None):
            raise trouble

    good, bad, envelope = (
        RecordingHandler(fine, "good"),
        RecordingHandler(fails_once, "bad"),
        created(),
    )
    calls = HandlerRunner()

    first = await calls.deliver(envelope, [good, bad])
    second = await calls.deliver(envelope, [good, bad], attempt=2)
    third = await calls.deliver(envelope, [good, bad])
    calls.settled(envelope.event_id)
    await calls.deliver(envelope, [good, bad])

    assert (len(first), second, third) == (1, [], [])
    assert (good.calls, bad.calls) == (2, 3)


async def test_error_decides_what_is_done_and_its_text_stays_out_of_the_reason() -> None:
    errors = [DatabaseUnavailable("away"), DecodeError("field x"), ValueError("canary-7b1")]

    def raising(error: Exception) -> RecordingHandler:
        async def work(_: EventEnvelope) -> None:
            raise error

        return RecordingHandler(work, type(error).__name__)

    failures = await HandlerRunner().deliver(created(), [raising(error) for error in errors])

    assert [f.verdict for f in failures] == ["wait", "never", "count"]
    assert failures[2].reason.startswith("ValueError: ValueError at ")
    assert "canary-7b1" not in failures[2].reason
    assert failures[1].reason == "DecodeError: DecodeError: field x"


async def test_every_call_is_told_with_its_outcome() -> None:
    told: list[Signal] = []

    async def fails(_: EventEnvelope) -> None:
        raise ValueError("no")

    class Seen:
        @asynccontextmanager
        async def once(self, _: EventEnvelope, name: str, /) -> AsyncIterator[bool]:
            yield name != "seen"

    calls = HandlerRunner(inbox=Seen(), on_signal=told.append)
    handlers = [
        RecordingHandler(fine, "ok"),
        RecordingHandler(fine, "seen"),
        RecordingHandler(fails, "bad"),
    ]
    envelope = created()
    await calls.deliver(envelope, handlers)
    await calls.deliver(envelope, handlers, attempt=2, last=True)

    outcomes = [(s.handler, s.outcome) for s in told if isinstance(s, EventHandled)]
    assert outcomes == [("ok", "ok"), ("seen", "duplicate"), ("bad", "retry"), ("bad", "dead")]
    assert handlers[1].calls == 0


@pytest.mark.parametrize("wrap", [lambda handler: handler, TracedHandler])
async def test_what_an_idempotent_handler_skips_is_a_duplicate(
    wrap: Callable[[IdempotentHandler], EventHandler],
) -> None:
    outcomes, envelope, work = list[str](), created(), RecordingHandler(fine, "invoice")
    handler = wrap(IdempotentHandler(work, MemoryProcessedEvents()))

    def note(signal: Signal) -> None:
        assert isinstance(signal, EventHandled)
        outcomes.append(signal.outcome)

    calls = HandlerRunner(on_signal=note)
    for _ in range(2):
        assert await calls.deliver(envelope, [handler]) == []
        calls.settled(envelope.event_id)

    assert (outcomes, work.calls) == (["ok", "duplicate"], 1)


async def test_each_handler_has_a_scope_of_its_own_which_ends_with_it() -> None:
    opened: list[object] = []
    closed: list[object] = []

    class Session:
        """Made anew for each scope."""

    @asynccontextmanager
    async def scope(_: EventEnvelope) -> AsyncIterator[Scope]:
        session = Session()
        opened.append(session)
        yield ObjectScope({Session: session})
        closed.append(session)

    handlers, seen = Handlers(), []

    async def first(event: AccountOpened, session: Session) -> None:
        seen.append(session)

    async def second(session: Session, event: AccountOpened) -> None:
        seen.append(session)
        assert closed == opened[:1]
        raise ValueError("after the scope was opened")

    # Annotations of local classes are found only if they are no strings.
    for target in (first, second):
        target.__annotations__ = {"event": AccountOpened, "session": Session}
        handlers.handles(AccountOpened)(target)

    failures = await HandlerRunner(scope=scope).deliver(created(), handlers.of("AccountOpened"))

    assert seen == opened
    assert len(set(seen)) == 2
    assert [f.verdict for f in failures] == ["count"]
    assert current_scope() is None


class Mailer:
    """What only a scope can give."""


async def test_handler_that_needs_a_scope_is_refused_at_the_start_without_one() -> None:
    handlers = Handlers()

    @handlers.handles(AccountOpened)
    async def wants(event: AccountOpened, mailer: Mailer) -> None: ...

    with pytest.raises(ConfigurationError, match="wants asks for mailer"):
        HandlerRunner().check(handlers.of("AccountOpened"))


async def test_class_with_dependencies_comes_from_the_scope() -> None:
    handlers, seen = Handlers(), []

    @handlers.handles(AccountOpened)
    class Welcome:
        def __init__(self, mailer: Mailer) -> None:
            self.mailer = mailer

        async def handle(self, event: AccountOpened) -> None:
            seen.append((self.mailer, event))

    mailer = Mailer()

    @asynccontextmanager
    async def scope(_: EventEnvelope) -> AsyncIterator[Scope]:
        yield ObjectScope({Welcome: Welcome(mailer)})

    envelope = created()
    failures = await HandlerRunner(scope=scope).deliver(envelope, handlers.of("AccountOpened"))

    assert failures == []
    assert seen == [(mailer, envelope.to_event())]


async def test_wait_for_a_transaction_costs_no_attempt() -> None:
    class Locked:
        @asynccontextmanager
        async def once(self, _: EventEnvelope, _name: str, /) -> AsyncIterator[bool]:
            await asyncio.Event().wait()
            yield True

    handler = RecordingHandler(fine, "h")
    [failure] = await HandlerRunner(inbox=Locked(), timeout=QUICK).deliver(created(), [handler])

    assert failure.verdict == "wait"
    assert handler.calls == 0
