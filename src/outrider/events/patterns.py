"""Patterns of event types: `order.placed`, `order.*` or `*`."""

from __future__ import annotations

from outrider.errors import ConfigurationError


def check_pattern(pattern: str) -> str:
    """Refuse a pattern that has a star anywhere but at its end."""
    if not pattern or "*" in pattern[:-1]:
        raise ConfigurationError(
            f"{pattern!r} is no pattern of event types: write order.placed, order.* or *"
        )
    return pattern


def matches(pattern: str, event_type: str) -> bool:
    if pattern.endswith("*"):
        return event_type.startswith(pattern[:-1])
    return event_type == pattern


def overlap(one: str, other: str) -> bool:
    """Whether an event type can match both patterns."""
    return matches(one, other.removesuffix("*")) or matches(other, one.removesuffix("*"))
