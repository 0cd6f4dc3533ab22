"""A connection to one of the servers, and what the errors of nats-py mean."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import ConnectionClosedError, NoServersError, SecureConnWantedError
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from outrider.brokers.nats.config import NatsConfig, Server, parse_url, tls_context
from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError
from outrider.settings.url_parameters import with_url_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NATS_ERRORS: Final = (NatsError, OSError, TimeoutError, UnicodeError)

_GRACE: Final = 1.0
_DENIED: Final = "permissions violation"
_NO_WAITING_HELPS: Final = ("authorization", "authentication", "credentials", "secure connection")
# Codes of JetStream that no waiting cures: not enabled, invalid, overlapping, not in a cluster.
_FOR_EVER: Final = frozenset({10039, 10052, 10065, 10074, 10076})


class Connection(Client):
    """nats-py's client, except that once lost it stays lost, says so at once, and sends nothing
    of what it had not sent yet: that would be a copy from the past."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self.denied: str | None = None
        """The last thing that our permissions do not allow, in the server's words."""
        self.reason: Exception | None = None
        """The last error that was reported in the background."""
        self.lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self.on_denied: Callable[[str], None] = lambda _: None

    async def start(self, config: NatsConfig, tls: ssl.SSLContext | None) -> None:
        self.patience = config.request_timeout.total_seconds()
        self.js = self.jetstream(timeout=self.patience)
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
                # Zero: nothing waits here for a server to come back, and publishing never blocks.
                pending_size=0,
                connect_timeout=config.connect_timeout.total_seconds(),  # type: ignore[arg-type]
                ping_interval=config.heartbeat.total_seconds(),  # type: ignore[arg-type]
                max_outstanding_pings=1,
                user_credentials=str(config.credentials) if config.credentials else None,
                nkeys_seed=str(config.nkey_seed) if config.nkey_seed else None,
            )
        except NoServersError:
            raise self.reason or NoServersError from None

    async def ask(self, subject: str, **question: object) -> dict[str, Any]:
        """JetStream's own answer, with what nats-py leaves out of it."""
        asked = json.dumps(question).encode() if question else b""
        answer = await self.request(f"$JS.API.{subject}", asked, timeout=self.patience)
        found: dict[str, Any] = json.loads(answer.data)
        if "error" in found:
            raise APIError.from_error(found["error"])
        return found

    def send(self, command: bytes) -> None:
        """As `publish` does, which would marshal the headers more slowly than we do."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def abort(self) -> None:
        """Hang up now; the client's own tasks notice and end themselves."""
        self._pending, self._pending_data_size = [], 0
        for answer in list(self._resp_map.values()):
            if not answer.done():
                answer.set_exception(ConnectionClosedError())
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer:
            self._transport._io_writer.transport.abort()
        self.lost = True
        self.on_lost()

    async def end(self) -> None:
        with suppress(Exception):
            await asyncio.wait_for(self.close(), _GRACE)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        # All ways to lose a connection lead here; its callbacks come later or not at all.
        self.abort()
        await super()._close(status, do_cbs)

    def _connect_command(self) -> bytes:
        if self._server.tls and not self._server_info.get("tls_required"):
            # nats-py would go on, and send the password in the clear.
            raise SecureConnWantedError
        return super()._connect_command()

    async def _on_error(self, error: Exception) -> None:
        self.reason = error
        if _DENIED in str(error):
            self.denied = str(error).removeprefix("nats: ")
            self.on_denied(self.denied)


class Cluster:
    """Where to connect to, and how."""

    def __init__(self, url: str | Sequence[str], config: NatsConfig | None) -> None:
        self.config = config or NatsConfig()
        if isinstance(url, str):
            url, self.config = with_url_settings(url, self.config)
        self._servers = parse_url(url)
        self._tls = tls_context(self._servers, self.config)

    def __str__(self) -> str:
        return ",".join(map(str, self._servers))

    async def connect(self) -> Connection:
        """To any server that answers."""
        failures = []
        for server in random.sample(self._servers, len(self._servers)):
            connection = Connection(server)
            try:
                async with asyncio.timeout(2 * self.config.connect_timeout.total_seconds()):
                    await connection.start(self.config, self._tls if server.tls else None)
                return connection
            except BaseException as error:
                await connection.end()
                if not isinstance(error, Exception):
                    raise
                failures.append(self.translate(error, connection))
        waiting_helps = [each for each in failures if isinstance(each, BrokerUnavailable)]
        raise (waiting_helps or failures)[0]

    def translate(self, error: Exception, connection: Connection | None) -> OutriderError:
        return _translate(error, str(self), connection.denied if connection else None)


def _translate(error: Exception, where: str, denied: str | None) -> OutriderError:
    match error:
        case OutriderError():
            return error
        case NoStreamResponseError() | ServiceUnavailableError(err_code=None):
            for_ever, why = False, "nobody answers: no stream, no leader, or no JetStream"
        case APIError():
            for_ever, why = error.err_code in _FOR_EVER, f"{error.description} ({error.err_code})"
        case ssl.SSLCertVerificationError():
            for_ever, why = True, f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            cut_off = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
            for_ever, why = not cut_off, f"no TLS: {error.reason}"
        case TimeoutError():
            for_ever, why = denied is not None, denied or "no answer in time"
        case FileNotFoundError() | PermissionError():
            for_ever, why = True, f"credentials or nkey_seed: {error.strerror}"
        case OSError():
            for_ever, why = False, error.strerror or type(error).__name__
        case NatsError():
            why = str(error).removeprefix("nats: ")
            for_ever = any(word in why.lower() for word in _NO_WAITING_HELPS)
        case _:
            for_ever, why = True, f"not valid: host, credentials or seed ({type(error).__name__})"
    kind = ConfigurationError if for_ever else BrokerUnavailable
    translated = kind(f"NATS at {where}: {why}")
    translated.__cause__ = error
    return translated
