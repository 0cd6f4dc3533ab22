"""The consumer of the decisions example; it kills itself at a chosen step."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractAsyncContextManager

from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from examples.decisions import consumer as example
from outrider import EventConsumer
from outrider.brokers.redis import RedisSource
from outrider.ports import Delivery


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _DiesInsteadOfAcknowledging(RedisSource):
    async def acknowledge(self, delivery: Delivery, /) -> None:
        _die()


def before_the_commit() -> AbstractAsyncContextManager[EventConsumer]:
    """Die after the entry is written and before the commit."""

    @event.listens_for(Engine, "after_cursor_execute")
    def look(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO dashboard"):
            event.listen(Engine, "commit", _die)

    return example.consumer()


def after_the_commit() -> AbstractAsyncContextManager[EventConsumer]:
    """Die right after the commit."""
    event.listen(Session, "after_commit", _die)
    return example.consumer()


def before_the_acknowledgement() -> AbstractAsyncContextManager[EventConsumer]:
    """Die before the acknowledgement."""
    example.RedisSource = _DiesInsteadOfAcknowledging  # type: ignore[misc]
    return example.consumer()
