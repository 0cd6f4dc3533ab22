"""What one connection has received from a queue and not acknowledged yet."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pamqp import commands

from outrider.brokers.rabbitmq.messages import CHANNEL
from outrider.brokers.rabbitmq.received import Message, delivery_of, message_of

if TYPE_CHECKING:
    from outrider.brokers.rabbitmq.amqp.wire import Lost, Wire
    from outrider.ports import Delivery

_ACK: Final = struct.Struct(">BHIIQ?B")


class Subscription:
    """Ends with its connection: what is not acknowledged by then comes again on another."""

    def __init__(self, wire: Wire) -> None:
        self.active = False
        """Whether the broker delivers to it, now or when it is its turn."""
        self._wire = wire
        self._arrived = asyncio.Event()
        self._waiting: deque[Message] = deque()
        self._in_hand: dict[int, Delivery] = {}
        self._oldest = 1
        self._acknowledged: set[int] = set()
        self._told: set[int] = set()

    def received(self, arguments: bytes, header: bytes, body: bytes, /) -> None:
        self._waiting.append(message_of(arguments, header, body))
        self._arrived.set()

    def lost(self, _: Lost, /) -> None:
        for delivery in self._in_hand.values():
            delivery.lost = True
        self._in_hand.clear()
        self._arrived.set()

    async def take(self, limit: int, seconds: float) -> list[Delivery]:
        """What is there, or comes first within that time."""
        if not self._waiting and self._wire.error is None:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        if self._wire.error is not None:
            raise self._wire.error
        count = min(limit, len(self._waiting))
        taken = [delivery_of(self._waiting.popleft()) for _ in range(count)]
        self._in_hand.update((delivery.message.tag, delivery) for delivery in taken)
        return taken

    def acknowledge(self, delivery: Delivery) -> None:
        """Told to the broker in the loop's next turn, together with all others of this one."""
        if self._in_hand.pop(delivery.message.tag, None) is None:
            return  # acknowledged before; a second time would be an error that ends the connection
        if not self._acknowledged:
            asyncio.get_running_loop().call_soon(self.tell)
        self._acknowledged.add(delivery.message.tag)

    def tell(self) -> None:
        """One word for all up to the first that is not acknowledged, and one for each later."""
        if self._wire.error is not None:
            return
        new, upto = self._acknowledged, 0
        while (tag := self._oldest) in new or tag in self._told:
            if tag in new:
                upto = tag
            new.discard(tag)
            self._told.discard(tag)
            self._oldest += 1
        words = [_ack(upto, multiple=True)] if upto else []
        words += [_ack(tag, multiple=False) for tag in sorted(new)]
        self._told |= new
        new.clear()
        if words:
            self._wire.send(b"".join(words))


def _ack(tag: int, *, multiple: bool) -> bytes:
    return _ACK.pack(1, CHANNEL, 13, commands.Basic.Ack.index, tag, multiple, 0xCE)
