"""A connection to one NATS server, and what the errors of servers and of nats-py mean."""

from __future__ import annotations

import asyncio
import json
import random
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import ConnectionClosedError, NoServersError, SecureConnWantedError
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from outrider.brokers.nats.config import NatsConfig, Server, read_url, tls_context
from outrider.brokers.network_errors import Diagnosis, network_diagnosis
from outrider.errors import BrokerUnavailable, OutriderError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

NATS_ERRORS: Final = (NatsError, OSError)
"""What nats-py raises once it is connected."""

_CLOSE_TIMEOUT_S: Final = 1.0
_PERMISSION_DENIED: Final = re.compile(
    r"permissions violation for (publish to|publish with reply of|subscription to) "
    r'"(?P<subject>[^"]*)"'
)
_PERMANENT_WORDS: Final = ("authorization", "authentication", "credentials", "secure connection")
# Error codes of JetStream that waiting does not cure: JetStream is not enabled (10039, 10076), the
# stream's settings are invalid (10052) or overlap (10065), replicas need a cluster (10074).
_PERMANENT_CODES: Final = frozenset({10039, 10052, 10065, 10074, 10076})
# Whole texts of servers and of nats-py that hold no value; no other text is quoted.
_QUOTABLE: Final = frozenset(
    {
        "account authentication expired",
        "authentication expired",
        "authentication timeout",
        "authorization failed",
        "authorization violation",
        "connection closed",
        "consumer filter subject is not a valid subset of the interest subjects",
        "consumer is offline",
        "consumer name already in use",
        "consumer not found",
        "consumer subject filters cannot overlap",
        "duplicate message id is in process",
        "filtered consumer not unique on workqueue stream",
        "header size exceeds maximum allowed of 64k",
        "insufficient memory resources available",
        "insufficient resources",
        "insufficient storage resources available",
        "invalid operation on sealed stream",
        "invalid user credentials",
        "jetstream cluster can not handle request",
        "jetstream not enabled",
        "jetstream not enabled for account",
        "jetstream system temporarily unavailable",
        "maximum account active connections exceeded",
        "maximum bytes exceeded",
        "maximum connections exceeded",
        "maximum consumers limit reached",
        "maximum messages exceeded",
        "maximum messages per subject exceeded",
        "maximum number of streams reached",
        "maximum payload exceeded",
        "maximum payload violation",
        "maximum subscriptions exceeded",
        "message size exceeds maximum allowed",
        "multiple non-filtered consumers not allowed on workqueue stream",
        "no responders available for request",
        "no servers available for connection",
        "no suitable peers for placement",
        "replicas > 1 not supported in non-clustered mode",
        "resource limits exceeded for account",
        "secure connection - tls required",
        "secure connection not available",
        "stale connection",
        "stream is offline",
        "stream name already in use with a different configuration",
        "stream not found",
        "subjects overlap with an existing stream",
        "too many requests",
        "unexpected eof",
        "user authentication expired",
        "user authentication revoked",
    }
)


class Connection(Client):
    """The client of nats-py, with three differences: it never reconnects, it reports the loss of
    the connection at once, and it then drops what it has not sent, which would arrive late."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self.permission_error: str | None = None
        """The last thing that our permissions do not allow, in the server's words."""
        self.lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self.on_publish_denied: Callable[[str, str], None] = lambda _subject, _text: None
        """Called with the subject in lower case, and the server's words."""
        self._background_error: Exception | None = None

    async def start(self, config: NatsConfig, tls: ssl.SSLContext | None) -> None:
        self.request_timeout_s = config.request_timeout.total_seconds()
        self.js = self.jetstream(timeout=self.request_timeout_s)
        try:
            await self.connect(
                f"nats://{str(self._server).partition('//')[2]}",
                **self._server.login,  # type: ignore[arg-type]
                name="outrider",
                tls=tls,
                error_cb=self._on_error,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                # Zero: nothing is buffered for a reconnect, and publishing never blocks.
                pending_size=0,
                connect_timeout=config.connect_timeout.total_seconds(),  # type: ignore[arg-type]
                ping_interval=config.heartbeat.total_seconds(),  # type: ignore[arg-type]
                max_outstanding_pings=1,
                user_credentials=str(config.credentials) if config.credentials else None,
                nkeys_seed=str(config.nkey_seed) if config.nkey_seed else None,
            )
        except NoServersError:
            raise self._background_error or NoServersError from None

    async def request_api(self, subject: str, **body: object) -> dict[str, Any]:
        """The JSON answer of JetStream's API, including fields that nats-py leaves out."""
        data = json.dumps(body).encode() if body else b""
        answer = await self.request(f"$JS.API.{subject}", data, timeout=self.request_timeout_s)
        found: dict[str, Any] = json.loads(answer.data)
        if "error" in found:
            raise APIError.from_error(found["error"])
        return found

    def send(self, command: bytes) -> None:
        """Like `publish`, but takes the whole command, since we marshal headers faster."""
        # _pending, _pending_data_size, _flush_queue: the send buffer of nats-py, which has no
        # public call for commands that are marshalled already.
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def abort(self) -> None:
        """Closes the socket now. The tasks of nats-py notice that and end by themselves."""
        # _pending: `close` would send what is in this buffer.
        self._pending, self._pending_data_size = [], 0
        # _resp_map: requests in flight, which nats-py would let wait for their whole timeout.
        for answer in list(self._resp_map.values()):
            if not answer.done():
                answer.set_exception(ConnectionClosedError())
        # _transport._io_writer: `close` flushes first, which never ends if the server hangs.
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer:
            self._transport._io_writer.transport.abort()
        self.lost = True
        self.on_lost()

    async def shut_down(self) -> None:
        """Closes the connection, without an error and within a second."""
        with suppress(Exception):
            await asyncio.wait_for(self.close(), _CLOSE_TIMEOUT_S)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        # Overridden because nats-py calls it whenever a connection is lost; its public callbacks
        # come later or not at all.
        self.abort()
        await super()._close(status, do_cbs)

    def _connect_command(self) -> bytes:
        # Overridden because nats-py would continue without TLS, and send the password in clear.
        # _server_info: the server's greeting, which nats-py does not show to its callers.
        if self._server.tls and not self._server_info.get("tls_required"):
            raise SecureConnWantedError
        return super()._connect_command()

    async def _on_error(self, error: Exception) -> None:
        self._background_error = error
        if found := _PERMISSION_DENIED.search(str(error)):
            self.permission_error = found[0]
            if found[1] == "publish to":
                self.on_publish_denied(found["subject"], found[0])


class Cluster:
    """Where to connect to, and how."""

    def __init__(self, url: str | Sequence[str], config: NatsConfig | None) -> None:
        self._servers, self.config = read_url(url, config)
        self._tls = tls_context(self._servers, self.config)

    def __str__(self) -> str:
        return ",".join(map(str, self._servers))

    async def connect(self) -> Connection:
        """Connects to the first server that answers, in random order."""
        failures = []
        for server in random.sample(self._servers, len(self._servers)):
            connection = Connection(server)
            try:
                async with asyncio.timeout(2 * self.config.connect_timeout.total_seconds()):
                    await connection.start(self.config, self._tls if server.tls else None)
                return connection
            except BaseException as error:
                await connection.shut_down()
                if not isinstance(error, Exception):
                    raise
                failures.append(translate(error, self, connection.permission_error))
        temporary = [each for each in failures if isinstance(each, BrokerUnavailable)]
        raise (temporary or failures)[0]


def translate(
    error: Exception, address: object, permission_error: str | None = None
) -> OutriderError:
    """Quotes only texts that are known to hold no value.

    A server answers a request without permission by an error in the background only, so the
    request times out; `permission_error` then says why.
    """
    if permission_error is not None and isinstance(error, TimeoutError):
        diagnosis = Diagnosis(True, permission_error)
    else:
        diagnosis = _file_error(error) or network_diagnosis(error) or _nats_error(error)
    return diagnosis.error("NATS", address, error)


def _file_error(error: Exception) -> Diagnosis | None:
    if isinstance(error, FileNotFoundError | PermissionError):
        return Diagnosis(True, f"credentials or nkey_seed: {error.strerror}")
    return None


def _nats_error(error: Exception) -> Diagnosis:
    match error:
        case NoStreamResponseError() | ServiceUnavailableError(err_code=None):
            return Diagnosis(False, "nobody answers: no stream, no leader, or no JetStream")
        case APIError():
            text = api_error_text(error.description, error.err_code)
            return Diagnosis(error.err_code in _PERMANENT_CODES, text)
        case NatsError():
            text = str(error).removeprefix("nats: ").strip("'")
            permanent = any(word in text.lower() for word in _PERMANENT_WORDS)
            return Diagnosis(permanent, _quote(text) or type(error).__name__)
        case _:
            kind = type(error).__name__
            return Diagnosis(True, f"not valid: host, credentials or seed ({kind})")


def api_error_text(description: object, code: object) -> str:
    """An error of JetStream's API: its description if that holds no value, and its code."""
    number = code if isinstance(code, int) else "no code"
    return f"{_quote(description) or 'JetStream error'} ({number})"


def _quote(text: object) -> str | None:
    return text if isinstance(text, str) and text.lower() in _QUOTABLE else None
