"""Sharing the lanes: who gets how many, the same sum on every relay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.sql.rows import LANES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID


def fair_share(relay: UUID, live: Sequence[UUID]) -> int:
    """How many lanes this relay should have; the shares of all live relays add up to all lanes."""
    ranked = sorted({*live, relay})
    base, rest = divmod(LANES, len(ranked))
    return base + (ranked.index(relay) < rest)


def surplus(lanes: Collection[int], share: int) -> list[int]:
    """The lanes to give up so that `share` are left."""
    return sorted(lanes)[share:]
