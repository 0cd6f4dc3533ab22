"""Publishes on their way through one connection, and who waits for which answer."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Final

from nats.errors import ConnectionClosedError

from outrider.brokers.nats.messages import MessageWriter, Unsendable
from outrider.outcomes import ACCEPTED, Outcome, Refused, Unknown

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from outrider.brokers.nats.batch import Batch
    from outrider.brokers.nats.connection import Connection

# More than this on its way makes nothing faster, and a server refuses what it cannot queue.
_MOST_IN_FLIGHT: Final = 2_000
_MOST_BYTES: Final = 4 * 1024 * 1024
_AT_ONCE: Final = 100
_NO_PERMISSION: Final = re.compile(r'violation for publish to "(.+)"')
_OWN_FAULT: Final = 400


class Pipeline:
    """Sends without waiting, each message with an inbox of its own for the answer."""

    def __init__(self, connection: Connection, stream: str, writer: MessageWriter) -> None:
        self.connection = connection
        self.max_size = 0
        """Of a whole message; the server hangs up on larger ones."""
        self.doubtful = False
        """The stream is not what it was when we last looked."""
        self._stream, self._writer = stream, writer
        self._stored = f'{{"stream":{json.dumps(stream)},'.encode()
        self._inbox = connection.new_inbox() + "."
        self._number = 0
        self._waiting: dict[int, tuple[Batch, int]] = {}
        connection.on_lost = self._on_lost
        connection.on_denied = self._on_denied

    async def open(self) -> None:
        await self.connection.subscribe(self._inbox + "*", cb=self._on_answer)

    async def send_all(self, batch: Batch) -> None:
        """Until every event is answered, or the connection is lost."""
        while not batch.settled:
            batch.changed.clear()
            await self._send_ready(batch)
            if self.connection.lost:
                raise self.connection.last_error or ConnectionClosedError
            if not batch.settled:
                await batch.changed.wait()

    async def _send_ready(self, batch: Batch) -> None:
        sent = 0
        while batch.ready and not self.connection.lost and _has_room(batch):
            index = batch.ready.popleft()
            self._number += 1
            reply = f"{self._inbox}{self._number}"
            try:
                message = self._writer.write(batch.envelopes[index], reply, self.max_size)
            except Unsendable as error:
                self.doubtful = True  # somebody may have raised the limit
                batch.answered(index, Refused(f"not sendable: {error}"))
                continue
            self._waiting[self._number] = (batch, index)
            batch.sent(index, len(message))
            self.connection.send(message)
            sent += 1
            if sent % _AT_ONCE == 0:
                await asyncio.sleep(0)  # the server can begin with these meanwhile

    async def _on_answer(self, message: Msg) -> None:
        found = self._waiting.pop(int(message.subject[len(self._inbox) :]), None)
        if found is not None:
            batch, index = found
            batch.answered(index, self._outcome(message))

    def _outcome(self, message: Msg) -> Outcome:
        if message.data.startswith(self._stored) and b'"error"' not in message.data:
            return ACCEPTED
        self.doubtful = True
        if not message.data:
            return Unknown("no stream takes its subject")
        answer = json.loads(message.data)
        if error := answer.get("error"):
            reason = f"{error.get('description')} ({error.get('err_code')})"
            return Refused(reason) if error.get("code") == _OWN_FAULT else Unknown(reason)
        if answer.get("stream") == self._stream:
            return ACCEPTED
        return Unknown("it went to another stream")

    def _on_denied(self, what: str) -> None:
        """There is no other answer; the words, all in lower case, name the subject."""
        if found := _NO_PERMISSION.search(what):
            for number, (batch, index) in list(self._waiting.items()):
                if self._writer.subject(batch.envelopes[index]).lower() == found[1]:
                    self.connection.denied = None  # no other question goes unanswered for this
                    del self._waiting[number]
                    batch.answered(index, Refused(what))

    def _on_lost(self) -> None:
        for batch, _ in self._waiting.values():
            batch.changed.set()
        self._waiting.clear()


def _has_room(batch: Batch) -> bool:
    return batch.bytes_in_flight < _MOST_BYTES and len(batch.in_flight) < _MOST_IN_FLIGHT
