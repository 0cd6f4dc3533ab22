"""Where messages go that were set aside, with the reason in a header."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nats.js.api import StorageType, StreamConfig
from nats.js.errors import NoStreamResponseError, NotFoundError

from outrider.brokers.nats.messages import MESSAGE_ID, encode, size_of

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from outrider.brokers.nats.connection import Connection

_MOST_REASON: Final = 1_000
_OF_THE_SERVER: Final = "Nats-"


class DeadLetters:
    """A subject, in a stream that is created when it is first needed."""

    def __init__(self, stream: str, group: str, subject: str | None, replicas: int) -> None:
        self._stream, self._group, self._replicas = f"{stream}_DLQ", group, replicas
        self.subject = subject or f"{self._stream}.{group}"
        self._taken = self.subject if subject else f"{self._stream}.>"

    async def write(self, connection: Connection, message: Msg, reason: str) -> None:
        """Returns when it is stored."""
        headers = self._headers(connection, message, reason)
        try:
            await connection.js.publish(self.subject, message.data, headers=headers)
        except NoStreamResponseError:
            await self._create(connection)
            await connection.js.publish(self.subject, message.data, headers=headers)

    def _headers(self, connection: Connection, message: Msg, reason: str) -> dict[str, str] | None:
        metadata = message.metadata
        number, stream = str(metadata.sequence.stream), metadata.stream
        sent = message.headers or {}
        own = {name: value for name, value in sent.items() if not name.startswith(_OF_THE_SERVER)}
        added = {
            MESSAGE_ID: f"{stream}:{number}:{self._group}",
            "dead-letter-reason": encode(reason[:_MOST_REASON]),
            "dead-letter-group": encode(self._group),
            "dead-letter-subject": encode(message.subject),
            "dead-letter-sequence": number,
        }
        # The server hangs up on a message that is too large; the body matters most.
        fitting = (
            headers
            for headers in (own | added, added)
            if size_of(headers, message.data) <= connection.max_payload
        )
        return next(fitting, None)

    async def _create(self, connection: Connection) -> None:
        try:
            config = (await connection.js.stream_info(self._stream)).config
        except NotFoundError:
            wanted = StreamConfig(
                name=self._stream,
                subjects=[self._taken],
                storage=StorageType.FILE,
                num_replicas=self._replicas,
            )
            await connection.js.add_stream(wanted)
        else:
            config.subjects = [*(config.subjects or []), self._taken]
            await connection.js.update_stream(config)
