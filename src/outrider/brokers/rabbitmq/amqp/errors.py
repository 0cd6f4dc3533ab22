"""How an AMQP connection ends, without any value that the broker may have quoted."""

from __future__ import annotations

import re
from typing import Final

from pamqp.exceptions import CLASS_MAPPING

_IN_VHOST: Final = r" in vhost '[^']*'"
_VALUE: Final = r"(?:none|(?:the value )?'[^']*'(?: of type '\w+')?)"

# RabbitMQ's texts that name only exchanges, queues, vhosts and their arguments. Any other text may
# quote a property or the bytes of a message.
_SAFE_TEXT: Final = re.compile(
    r"Login was refused using authentication mechanism \w+"
    rf"|(?:\w+ )?access to (?:exchange|queue) '[^']*'{_IN_VHOST} refused"
    rf"|(?:\w+ )?access to topic '[^']*' in exchange '[^']*'{_IN_VHOST} refused"
    r"|access to vhost '[^']*' refused"
    rf"|queue '[^']*'{_IN_VHOST} in exclusive use"
    rf"|no (?:exchange|queue) '[^']*'{_IN_VHOST}"
    rf"|inequivalent arg '[^']*' for (?:exchange|queue) '[^']*'{_IN_VHOST}: "
    rf"received {_VALUE} but current is {_VALUE}"
    rf"|cannot obtain exclusive access to locked queue '[^']*'{_IN_VHOST}"
    r"|unknown exchange type '[^']*'"
    r"|(?:exchange|queue) name '[^']*' contains reserved prefix '[^']*'"
    r"|message size \d+ is larger than configured max size \d+"
    r"|delivery acknowledgement on channel \d+ timed out"
    r"|unknown delivery tag \d+"
    r"|vhost '?[^' ]*'? not found"
    r"|broker forced connection closure with reason '\w+'"
    r"|the broker takes no user name and password"
)
_SAFE_BLOCKED: Final = re.compile(r"low on (?:memory|disk)(?: & (?:memory|disk))?")


class ConnectionLost(Exception):
    """The connection is gone; nobody can tell what became of the messages in flight."""


class ClosedByBroker(ConnectionLost):
    """The broker closed the channel or the connection.

    Printed, it shows the reply code's name and what is known to be harmless of the reply text.
    """

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.reply_text = text
        """As the broker sent it: for comparisons only, never for a log or an error."""
        found = _SAFE_TEXT.match(text.removeprefix(f"{code_name(code)} - "))
        super().__init__(f"{code_name(code)} - {found[0] if found else f'code {code}'}")


class Unsendable(Exception):
    """This message does not fit into AMQP."""


def code_name(code: int) -> str:
    """As RabbitMQ writes it: ACCESS_REFUSED for 403."""
    known = CLASS_MAPPING.get(code)
    name: str = getattr(known, "name", "CLOSED")
    return name.replace("-", "_")


def blocked_reason(text: str | None) -> str:
    """Why the broker takes no messages at the moment, if its text is a known one."""
    found = _SAFE_BLOCKED.match(text or "")
    return found[0] if found else "no known reason"
