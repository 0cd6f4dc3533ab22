"""The time in which a source receives: its requests for messages, and the messages in its hands."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nats.errors import NoRespondersError

from outrider.brokers.nats.connection import NATS_ERRORS
from outrider.brokers.nats.messages import from_message
from outrider.errors import BrokerUnavailable, DecodeError, InvalidEvent
from outrider.ports import Delivery

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from outrider.brokers.nats.connection import Connection
    from outrider.brokers.nats.consumers import Consumer, Consumers

_WAIT: Final = 1.0
_SLACK: Final = 1.0
_NOTHING_THERE: Final = ("404", "408")
_ACKNOWLEDGED, _NOT_YET, _IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"


class ActiveConsumer:
    """Ends with the connection, or when somebody else takes over: then it is `over`."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: Consumer,
        consumers: Consumers,
        prefetch: int,
    ) -> None:
        self.over = False
        self._prefetch = prefetch
        self._connection, self._consumer, self._consumers = connection, consumer, consumers
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer.name}"
        self._inbox = connection.new_inbox() + "."
        self._request_number = 0
        self._asked = 0
        """How many messages the server still owes us for the last request."""
        self._doubtful = False
        self._arrived: deque[Msg] = deque()
        self._news = asyncio.Event()
        self._in_hand: dict[int, Delivery] = {}
        self._first = True
        self._subscription: Subscription | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._subscription = await self._connection.subscribe(
            self._inbox + "*", cb=self._on_message
        )
        self._keeper = asyncio.create_task(self._keep(), name="outrider-nats-keeper")

    def lose(self) -> None:
        """Whatever is in hand comes again, here or elsewhere."""
        self.over = True
        for delivery in self._in_hand.values():
            delivery.lost = True
        self._in_hand.clear()
        self._arrived.clear()
        self._news.set()
        if self._keeper is not None:
            self._keeper.cancel()

    async def end(self, *, give_back: bool) -> None:
        """Let others have what is in hand at once, if nobody begins anew."""
        if give_back and not self.over:
            held = [*(each.message for each in self._in_hand.values()), *self._arrived]
            asking = (self._ask(message.reply, _NOT_YET) for message in held)
            await asyncio.gather(*asking, return_exceptions=True)
        self.lose()
        if self._subscription is not None:
            with suppress(*NATS_ERRORS):
                await self._subscription.unsubscribe()

    async def receive(self, limit: int) -> list[Delivery]:
        if not self._asked and len(self._arrived) <= self._prefetch // 2:
            await self._request(max(limit, self._prefetch) - len(self._arrived))
        try:
            async with asyncio.timeout(_WAIT + _SLACK):
                while self._asked and not self._arrived and not self.over:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            # Servers before 2.10 say nothing at all about a consumer that is gone.
            self._asked, self._doubtful = 0, True
        if self._doubtful:
            await self.check()
        taken = (self._take(self._arrived.popleft()) for _ in range(min(limit, len(self._arrived))))
        return [delivery for delivery in taken if delivery is not None]

    async def acknowledge(self, delivery: Delivery) -> None:
        try:
            await self._ask(delivery.message.reply, _ACKNOWLEDGED)
        except NoRespondersError as error:
            await self.check()
            if not self.over:
                raise BrokerUnavailable("NATS: the consumer has no leader") from error
        else:
            self._in_hand.pop(delivery.message.metadata.sequence.stream, None)

    async def check(self) -> None:
        """Whether our consumer still exists; a successor deletes it."""
        if not self.over and not await self._consumers.exists(
            self._connection, self._consumer.name
        ):
            self.lose()
        self._doubtful = False

    async def _request(self, count: int) -> None:
        self._asked, self._request_number = count, self._request_number + 1
        wanted = json.dumps({"batch": count, "expires": int(_WAIT * 1e9)}).encode()
        await self._connection.publish(self._next, wanted, f"{self._inbox}{self._request_number}")

    async def _on_message(self, message: Msg) -> None:
        if message.reply:
            self._asked = max(0, self._asked - 1)
            self._arrived.append(message)
        elif message.subject == f"{self._inbox}{self._request_number}":
            self._asked = 0
            self._doubtful |= (message.headers or {}).get("Status") not in _NOTHING_THERE
        self._news.set()

    def _take(self, message: Msg) -> Delivery | None:
        number = message.metadata.sequence.stream
        if number in self._in_hand:
            return None  # the server lost patience with us; it is being handled all the same
        delivery = Delivery(None, message=message, delivery_count=message.metadata.num_delivered)
        if self._first:
            delivery.delivery_count += self._consumer.tries - 1
            self._first = False
        try:
            delivery.envelope = from_message(message.headers, message.data)
        except DecodeError as error:
            delivery.problem = str(error)
        except InvalidEvent as error:
            # Its text may quote a value.
            delivery.problem = f"an attribute is not valid: {type(error).__name__}"
        self._in_hand[number] = delivery
        return delivery

    async def _keep(self) -> None:
        """Tell the server in time that we are still at it."""
        while True:
            await asyncio.sleep(self._consumer.ack_wait / 3)
            replies = [delivery.message.reply for delivery in self._in_hand.values()]
            replies += [message.reply for message in self._arrived]
            try:
                for reply in replies:
                    await self._connection.publish(reply, _IN_PROGRESS)
                if replies:
                    await self._ask(replies[0], _IN_PROGRESS)
            except NoRespondersError:
                with suppress(*NATS_ERRORS):
                    await self.check()
            except NATS_ERRORS:
                pass  # the next time, or the connection is lost

    async def _ask(self, reply: str, word: bytes) -> None:
        await self._connection.request(reply, word, timeout=self._connection.patience)
