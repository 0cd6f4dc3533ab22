"""From a network address to a wire with an open channel that confirms messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from pamqp import commands

from outrider.brokers.rabbitmq.amqp.errors import ClosedByBroker, ConnectionLost
from outrider.brokers.rabbitmq.amqp.frames import CHANNEL
from outrider.brokers.rabbitmq.amqp.wire import MAX_FRAME_BYTES, Wire

if TYPE_CHECKING:
    import ssl

_PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_CAPABILITIES: Final = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "publisher_confirms",
)


class Login(Protocol):
    """Where the broker is, and who logs in."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def vhost(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def password(self) -> str: ...


async def connect(login: Login, tls: ssl.SSLContext | None, heartbeat: int) -> Wire:
    """Connect, log in and open a channel with publisher confirms; heartbeat 0 switches it off."""
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(Wire, login.host, login.port, ssl=tls)
    try:
        await _log_in(wire, login, heartbeat)
        await wire.call(commands.Channel.Open(), commands.Channel.OpenOk, CHANNEL)
        await wire.call(commands.Confirm.Select(), commands.Confirm.SelectOk, CHANNEL)
    except BaseException:
        wire.abort(ConnectionLost("not opened"))
        raise
    return wire


async def _log_in(wire: Wire, login: Login, heartbeat: int) -> None:
    start = await wire.call(_PROTOCOL_HEADER, commands.Connection.Start)
    if "PLAIN" not in start.mechanisms.split():
        raise ClosedByBroker(403, "ACCESS_REFUSED - the broker takes no user name and password")
    reply = commands.Connection.StartOk(
        client_properties={
            "product": "outrider",
            "capabilities": dict.fromkeys(_CAPABILITIES, True),
        },
        response=f"\0{login.user}\0{login.password}",
    )
    tune = await wire.call(reply, commands.Connection.Tune)
    wire.frame_max = min(tune.frame_max or MAX_FRAME_BYTES, MAX_FRAME_BYTES)
    agreed = min(heartbeat, tune.heartbeat) if tune.heartbeat else heartbeat
    wire.send(commands.Connection.TuneOk(1, wire.frame_max, agreed))
    wire.start_heartbeat(agreed)
    opening = commands.Connection.Open(virtual_host=login.vhost)
    await wire.call(opening, commands.Connection.OpenOk)
