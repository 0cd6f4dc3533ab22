"""Receives from one JetStream consumer while it is active: pull requests, deliveries and acks."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nats.errors import NoRespondersError

from outrider.brokers.nats.connection import NATS_ERRORS
from outrider.brokers.nats.messages import to_delivery
from outrider.errors import BrokerUnavailable

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from outrider.brokers.nats.connection import Connection
    from outrider.brokers.nats.consumers import Consumer, Consumers
    from outrider.ports import Delivery

_PULL_EXPIRES_S: Final = 1.0
_PULL_GRACE_S: Final = 1.0
"""How much later than that an answer may come."""
_PULL_IS_OVER: Final = ("404", "408")
_ACK, _NAK, _IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"


class ActiveConsumer:
    """Ends when the connection is lost or another source takes over; then `ended` is true."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: Consumer,
        consumers: Consumers,
        prefetch: int,
    ) -> None:
        self.ended, self.name = False, consumer.name
        self._prefetch = prefetch
        self._connection, self._consumer, self._consumers = connection, consumer, consumers
        self._pull_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer.name}"
        self._inbox = connection.new_inbox() + "."
        self._pull_number = 0
        self._requested = 0
        """How many messages of the last pull request have not arrived yet."""
        self._must_check = False
        """The answers suggest that the consumer no longer exists."""
        self._prefetched: deque[Msg] = deque()
        self._changed = asyncio.Event()
        self._unacknowledged: dict[int, Delivery] = {}
        self._subscription: Subscription | None = None
        self._progress_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._subscription = await self._connection.subscribe(
            self._inbox + "*", cb=self._on_message
        )
        self._progress_task = asyncio.create_task(
            self._report_progress(), name="outrider-nats-progress"
        )

    def end(self) -> None:
        """Marks all deliveries as lost: they are delivered again, here or to another source."""
        self.ended = True
        for delivery in self._unacknowledged.values():
            delivery.lost = True
        self._unacknowledged.clear()
        self._prefetched.clear()
        self._changed.set()
        if self._progress_task is not None:
            self._progress_task.cancel()

    async def stop(self, *, give_back: bool) -> None:
        """Ends it. With `give_back` the server delivers its messages again at once, in no order;
        that is for sources that share a consumer."""
        if give_back and not self.ended:
            deliveries = [delivery.message for delivery in self._unacknowledged.values()]
            naks = (self._answer(each.reply, _NAK) for each in (*deliveries, *self._prefetched))
            await asyncio.gather(*naks, return_exceptions=True)
        self.end()
        if self._subscription is not None:
            with suppress(*NATS_ERRORS):
                await self._subscription.unsubscribe()

    async def receive(self, limit: int) -> list[Delivery]:
        if not self._requested and len(self._prefetched) <= self._prefetch // 2:
            await self._pull(max(limit, self._prefetch) - len(self._prefetched))
        try:
            async with asyncio.timeout(_PULL_EXPIRES_S + _PULL_GRACE_S):
                while self._requested and not self._prefetched and not self.ended:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            # Servers before 2.10 send no answer at all for a consumer that was deleted.
            self._requested, self._must_check = 0, True
        if self._must_check:
            await self.check()
        count = min(limit, len(self._prefetched))
        found = (self._deliver(self._prefetched.popleft()) for _ in range(count))
        return [delivery for delivery in found if delivery is not None]

    async def acknowledge(self, delivery: Delivery) -> None:
        try:
            await self._answer(delivery.message.reply, _ACK)
        except NoRespondersError as error:
            await self.check()
            if not self.ended:
                raise BrokerUnavailable("NATS: the consumer has no leader") from error
        else:
            self._unacknowledged.pop(delivery.message.metadata.sequence.stream, None)

    async def check(self) -> None:
        """Ends if the consumer no longer exists: a source that takes over deletes it."""
        if not self.ended and not await self._consumers.exists(
            self._connection, self._consumer.name
        ):
            self.end()
        self._must_check = False

    async def _pull(self, count: int) -> None:
        self._requested, self._pull_number = count, self._pull_number + 1
        body = json.dumps({"batch": count, "expires": int(_PULL_EXPIRES_S * 1e9)}).encode()
        reply = f"{self._inbox}{self._pull_number}"
        await self._connection.publish(self._pull_subject, body, reply)

    async def _on_message(self, message: Msg) -> None:
        if message.reply:
            self._requested = max(0, self._requested - 1)
            self._prefetched.append(message)
        elif message.subject == f"{self._inbox}{self._pull_number}":
            self._requested = 0
            self._must_check |= (message.headers or {}).get("Status") not in _PULL_IS_OVER
        self._changed.set()

    def _deliver(self, message: Msg) -> Delivery | None:
        """None for a message that the server delivered again while its handler still runs."""
        sequence = message.metadata.sequence.stream
        if sequence in self._unacknowledged:
            return None
        delivery = to_delivery(message)
        self._consumer.mark(delivery)
        self._unacknowledged[sequence] = delivery
        return delivery

    async def _report_progress(self) -> None:
        """Prevents the server from delivering messages again that are still being handled."""
        while True:
            await asyncio.sleep(self._consumer.ack_wait / 3)
            replies = [delivery.message.reply for delivery in self._unacknowledged.values()]
            replies += [message.reply for message in self._prefetched]
            try:
                for reply in replies:
                    await self._connection.publish(reply, _IN_PROGRESS)
                if replies:
                    # A request, since only its answer shows that the consumer still exists.
                    await self._answer(replies[0], _IN_PROGRESS)
            except NoRespondersError:
                with suppress(*NATS_ERRORS):
                    await self.check()
            except NATS_ERRORS:
                pass  # The next round tries again, unless the connection is lost.

    async def _answer(self, reply: str, kind: bytes) -> None:
        """Sends an acknowledgement, and waits until the server has confirmed it."""
        await self._connection.request(reply, kind, timeout=self._connection.request_timeout_s)
