"""The headers of a dead letter, the same on every broker."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "dead-letter-"
_MAX_REASON_BYTES: Final = 1_000


def dead_letter_headers(*, reason: str, origin: str, address: str, group: str) -> dict[str, str]:
    """Added to the headers of the message; earlier headers with this prefix are replaced.

    `origin` is where the message was stored (`orders/3/4711`), `address` where it had been
    published to, and `group` which consumer group could not handle it.
    """
    short = reason.encode(errors="replace")[:_MAX_REASON_BYTES].decode(errors="ignore")
    return {
        f"{PREFIX}reason": short,
        f"{PREFIX}origin": origin,
        f"{PREFIX}address": address,
        f"{PREFIX}group": group,
    }
