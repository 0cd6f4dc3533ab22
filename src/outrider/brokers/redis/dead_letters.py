"""Dead letters: entries that cannot be handled, added unchanged to another stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.brokers.dead_letter_headers import PREFIX, dead_letter_headers

if TYPE_CHECKING:
    from outrider.brokers.redis.connection import Command
    from outrider.brokers.redis.readers import Group, Reader
    from outrider.ports import Delivery

_PREFIX: Final = PREFIX.encode()


class DeadLetters:
    """Adds entries to one stream, with the reason and the place they came from."""

    def __init__(self, group: Group, stream: str | None) -> None:
        self._group = group
        self._stream = stream or f"{group.stream}.dlq"

    async def check(self) -> None:
        """Raises ConfigurationError if the key holds anything but a stream."""
        await self._group.pool.ask(("XLEN", self._stream))

    async def write(self, reader: Reader, delivery: Delivery, reason: str) -> None:
        """Returns when the server has it; raises LeaseLost if another process has the group."""
        await reader.execute(self._command(delivery, reason))

    def _command(self, delivery: Delivery, reason: str) -> Command:
        entry, fields = delivery.message
        kept: list[str | bytes] = []
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            if not name.startswith(_PREFIX):
                kept += (name, value)
        added = dead_letter_headers(
            reason=reason,
            origin=f"{self._group.stream}/{entry.decode()}",
            address=self._group.stream,
            group=self._group.name,
        )
        for header in added.items():
            kept += header
        return ("XADD", self._stream, "*", *kept)
