"""The decisions example's consumer, which dies by SIGKILL at the worst moment, or just before."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractAsyncContextManager

from sqlalchemy import Engine, event

from examples.decisions import consumer as example
from outrider import EventConsumer
from outrider.brokers.redis import RedisSource
from outrider.ports import Delivery


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _DiesInsteadOfAcknowledging(RedisSource):
    async def acknowledge(self, delivery: Delivery, /) -> None:
        _die()


def after_the_effect() -> AbstractAsyncContextManager[EventConsumer]:
    """Mark and entry are committed, the message is not acknowledged."""
    example.RedisSource = _DiesInsteadOfAcknowledging  # type: ignore[misc]
    return example.consumer()


def before_the_commit() -> AbstractAsyncContextManager[EventConsumer]:
    """Mark and entry are written, and not committed."""
    event.listen(Engine, "commit", _die)
    return example.consumer()
