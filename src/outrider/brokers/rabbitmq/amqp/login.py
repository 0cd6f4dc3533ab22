"""From an address to a wire that is ready for use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pamqp import commands

from outrider.brokers.rabbitmq.amqp.wire import FRAME_MAX, Closed, Lost, Wire
from outrider.brokers.rabbitmq.messages import CHANNEL

if TYPE_CHECKING:
    import ssl

    from outrider.brokers.rabbitmq.address import Address

_HELLO: Final = b"AMQP\x00\x00\x09\x01"
_CAPABILITIES: Final = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "publisher_confirms",
)


async def connect(address: Address, tls: ssl.SSLContext | None, heartbeat: int) -> Wire:
    """Reach the broker, log in and open a confirming channel."""
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(Wire, address.host, address.port, ssl=tls)
    try:
        await _log_in(wire, address, heartbeat)
        await wire.call(commands.Channel.Open(), commands.Channel.OpenOk, CHANNEL)
        await wire.call(commands.Confirm.Select(), commands.Confirm.SelectOk, CHANNEL)
    except BaseException:
        wire.abort(Lost("not opened"))
        raise
    return wire


async def _log_in(wire: Wire, address: Address, heartbeat: int) -> None:
    start = await wire.call(_HELLO, commands.Connection.Start)
    if "PLAIN" not in start.mechanisms.split():
        raise Closed(403, "ACCESS_REFUSED - the broker takes no user name and password")
    reply = commands.Connection.StartOk(
        client_properties={
            "product": "outrider",
            "capabilities": dict.fromkeys(_CAPABILITIES, True),
        },
        response=f"\0{address.user}\0{address.password}",
    )
    tune = await wire.call(reply, commands.Connection.Tune)
    wire.frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
    beat = min(heartbeat, tune.heartbeat) if tune.heartbeat else heartbeat
    wire.send(commands.Connection.TuneOk(1, wire.frame_max, beat))
    wire.beat(beat)
    opening = commands.Connection.Open(virtual_host=address.vhost)
    await wire.call(opening, commands.Connection.OpenOk)
