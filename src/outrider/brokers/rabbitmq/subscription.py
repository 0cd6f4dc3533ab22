"""Messages that one connection has received from a queue and not acknowledged yet."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from outrider.brokers.rabbitmq.amqp import ack_frame
from outrider.brokers.rabbitmq.messages import to_delivery

if TYPE_CHECKING:
    from outrider.brokers.rabbitmq.amqp import ConnectionLost, Message, Wire
    from outrider.ports import Delivery


class Subscription:
    """Ends with its connection: the broker then delivers the unacknowledged messages again."""

    def __init__(self, wire: Wire) -> None:
        self.active = False
        """Whether the broker delivers to it, or will as soon as it is the active consumer."""
        self._wire = wire
        self._arrived = asyncio.Event()
        self._received: deque[Message] = deque()
        self._unacknowledged: dict[int, Delivery] = {}
        self._oldest_tag = 1
        """All tags below this one are acknowledged at the broker."""
        self._to_send: set[int] = set()
        self._sent: set[int] = set()
        """Tags from the oldest one on that are acknowledged at the broker."""

    @property
    def is_connected(self) -> bool:
        return self._wire.error is None

    def received(self, message: Message, /) -> None:
        self._received.append(message)
        self._arrived.set()

    def lost(self, _: ConnectionLost, /) -> None:
        for delivery in self._unacknowledged.values():
            delivery.lost = True
        self._unacknowledged.clear()
        self._arrived.set()

    async def wait(self, seconds: float) -> bool:
        """Whether a message has arrived, or arrives within that time; raises ConnectionLost."""
        if not self._received and self._wire.error is None:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        if self._wire.error is not None:
            raise self._wire.error
        return bool(self._received)

    def take(self, limit: int) -> list[Delivery]:
        """Messages that have arrived."""
        count = min(limit, len(self._received))
        taken = [to_delivery(self._received.popleft()) for _ in range(count)]
        self._unacknowledged.update((delivery.message.tag, delivery) for delivery in taken)
        return taken

    def acknowledge(self, delivery: Delivery) -> None:
        """Sent at the end of this turn of the event loop, with all others of the same turn."""
        if self._unacknowledged.pop(delivery.message.tag, None) is None:
            return  # acknowledged before; the broker closes the channel on a second ack
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self.send_acks)
        self._to_send.add(delivery.message.tag)

    def send_acks(self) -> None:
        """One cumulative ack up to the first gap, then one ack per later tag."""
        if self._wire.error is not None:
            return
        new, upto = self._to_send, 0
        while (tag := self._oldest_tag) in new or tag in self._sent:
            if tag in new:
                upto = tag
            new.discard(tag)
            self._sent.discard(tag)
            self._oldest_tag += 1
        acks = [ack_frame(upto, multiple=True)] if upto else []
        acks += [ack_frame(tag, multiple=False) for tag in sorted(new)]
        self._sent |= new
        new.clear()
        if acks:
            self._wire.send(b"".join(acks))
