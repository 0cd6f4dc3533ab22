"""Copies messages that could not be handled to a subject of dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nats.js.api import StorageType, StreamConfig
from nats.js.errors import NoStreamResponseError, NotFoundError

from outrider.brokers.dead_letter_headers import PREFIX, dead_letter_headers
from outrider.brokers.nats.messages import MESSAGE_ID, encode, size_of

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from outrider.brokers.nats.connection import Connection

_NOT_COPIED: Final = ("nats-", PREFIX)
"""Headers for the server, and those of an earlier dead letter."""


class DeadLetters:
    """A subject, in the stream `<stream>_DLQ`, which is created at first use."""

    def __init__(self, stream: str, group: str, subject: str | None, replicas: int) -> None:
        self._stream, self._group, self._replicas = f"{stream}_DLQ", group, replicas
        self.subject = subject or f"{self._stream}.{group}"
        self._stream_subject = self.subject if subject else f"{self._stream}.>"

    async def write(self, connection: Connection, message: Msg, reason: str) -> None:
        """Returns when the copy is stored."""
        headers = self._headers(connection, message, reason)
        try:
            await connection.js.publish(self.subject, message.data, headers=headers)
        except NoStreamResponseError:
            await self._create_stream(connection)
            await connection.js.publish(self.subject, message.data, headers=headers)

    def _headers(self, connection: Connection, message: Msg, reason: str) -> dict[str, str] | None:
        stream, sequence = message.metadata.stream, message.metadata.sequence.stream
        kept = {
            name: value
            for name, value in (message.headers or {}).items()
            if not name.lower().startswith(_NOT_COPIED)
        }
        letter = dead_letter_headers(
            reason=reason,
            origin=f"{stream}/{sequence}",
            address=message.subject,
            group=self._group,
        )
        added = {name: encode(value) for name, value in letter.items()}
        added[MESSAGE_ID] = f"{stream}:{sequence}:{self._group}"
        # The server closes the connection if a message is too large, so headers are left out then.
        fitting = (
            headers
            for headers in (kept | added, added)
            if size_of(headers, message.data) <= connection.max_payload
        )
        return next(fitting, None)

    async def _create_stream(self, connection: Connection) -> None:
        try:
            config = (await connection.js.stream_info(self._stream)).config
        except NotFoundError:
            wanted = StreamConfig(
                name=self._stream,
                subjects=[self._stream_subject],
                storage=StorageType.FILE,
                num_replicas=self._replicas,
            )
            await connection.js.add_stream(wanted)
        else:
            config.subjects = [*(config.subjects or []), self._stream_subject]
            await connection.js.update_stream(config)
