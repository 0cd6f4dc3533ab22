"""Publishes many events through one connection, and matches each answer to its event."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from nats.errors import ConnectionClosedError

from outrider.brokers.nats.connection import api_error_text
from outrider.brokers.nats.messages import MessageWriter, Unsendable
from outrider.outcomes import ACCEPTED, Deferred, Outcome, Refused, Unknown

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from outrider.brokers.nats.batch import Batch
    from outrider.brokers.nats.connection import Connection

# More in flight is not faster, and a server refuses what exceeds its queues.
_MAX_IN_FLIGHT: Final = 2_000
_MAX_BYTES_IN_FLIGHT: Final = 4 * 1024 * 1024
_YIELD_EVERY: Final = 100
_BAD_REQUEST: Final = 400
_SEALED: Final = 10109
_OF_SUBJECT: Final = "per subject"


class Pipeline:
    """Sends without waiting for answers; each message has its own reply subject."""

    def __init__(self, connection: Connection, stream: str, writer: MessageWriter) -> None:
        self.connection = connection
        self.max_size = 0
        """Most bytes of a message; for a larger one the server would close the connection."""
        self.must_check_stream = False
        """The settings of the stream may have changed since they were last read."""
        self._stream, self._writer = stream, writer
        self._ack_prefix = f'{{"stream":{json.dumps(stream)},'.encode()
        self._inbox = connection.new_inbox() + "."
        self._number = 0
        self._waiting: dict[int, tuple[Batch, int]] = {}
        connection.on_lost = self._on_lost
        connection.on_publish_denied = self._on_publish_denied

    async def open(self) -> None:
        await self.connection.subscribe(self._inbox + "*", cb=self._on_answer)

    async def send_all(self, batch: Batch) -> None:
        """Returns when every event is answered; raises if the connection is lost."""
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
                self.must_check_stream = True  # Its size limit may have been raised.
                batch.answered(index, Refused(f"not sendable: {error}"))
                continue
            self._waiting[self._number] = (batch, index)
            batch.sent(index, len(message))
            self.connection.send(message)
            sent += 1
            if sent % _YIELD_EVERY == 0:
                await asyncio.sleep(0)  # Lets the client send these while the next are marshalled.

    async def _on_answer(self, message: Msg) -> None:
        found = self._waiting.pop(int(message.subject[len(self._inbox) :]), None)
        if found is not None:
            batch, index = found
            batch.answered(index, self._outcome(message))

    def _outcome(self, message: Msg) -> Outcome:
        if message.data.startswith(self._ack_prefix) and b'"error"' not in message.data:
            return ACCEPTED
        self.must_check_stream = True
        if not message.data:
            return Unknown("no stream takes its subject")
        answer = json.loads(message.data)
        if error := answer.get("error"):
            return _outcome_of_error(error)
        if answer.get("stream") == self._stream:
            return ACCEPTED
        return Unknown("it went to another stream")

    def _on_publish_denied(self, subject: str, text: str) -> None:
        """The server sends no other answer to a message that our permissions do not allow."""
        for number, (batch, index) in list(self._waiting.items()):
            if self._writer.subject(batch.envelopes[index]).lower() == subject:
                # Else the next request that times out would be explained by this.
                self.connection.permission_error = None
                del self._waiting[number]
                batch.answered(index, Refused(text))

    def _on_lost(self) -> None:
        for batch, _ in self._waiting.values():
            batch.changed.set()
        self._waiting.clear()


def _outcome_of_error(error: dict[str, Any]) -> Outcome:
    reason = api_error_text(error.get("description"), error.get("err_code"))
    if error.get("code") == _BAD_REQUEST and error.get("err_code") != _SEALED:
        return Refused(reason)
    # Any other limit is that of the whole stream: the relay waits with all events.
    return Deferred(reason) if _OF_SUBJECT in reason else Unknown(reason)


def _has_room(batch: Batch) -> bool:
    return batch.bytes_in_flight < _MAX_BYTES_IN_FLIGHT and len(batch.in_flight) < _MAX_IN_FLIGHT
