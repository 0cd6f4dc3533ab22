"""Whether the server keeps what it acknowledged: eviction, persistence and lost entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redis import exceptions

from outrider.brokers.redis.losses import count_trimmed, named
from outrider.ports import CheckResult

if TYPE_CHECKING:
    from outrider.brokers.redis.connection import ConnectionPool, RedisConnection

_MAX_COUNTED: Final = 1000
_SETTINGS: Final = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync")


async def check_durability(pool: ConnectionPool) -> list[CheckResult]:
    async with pool.connection() as connection:
        replies = await connection.ask(*(("CONFIG", "GET", name) for name in _SETTINGS))
    if any(not isinstance(reply, list) or not reply for reply in replies):
        text = "its settings may not be read: nobody can tell what an acknowledgement is worth"
        return [CheckResult("durability", "warning", text, "allow CONFIG GET, or ask who runs it")]
    found = {name: reply[1].decode() for name, reply in zip(_SETTINGS, replies, strict=True)}
    return [_eviction(found["maxmemory"], found["maxmemory-policy"]), _persistence(found)]


async def check_groups(pool: ConnectionPool, stream: str) -> list[CheckResult]:
    """The groups whose entries were deleted before they were handled."""
    async with pool.connection() as connection:
        info, groups = await connection.ask(
            *(("XINFO", kind, stream) for kind in ("STREAM", "GROUPS"))
        )
        if isinstance(info, exceptions.NoPermissionError):
            text = "its groups may not be read: nobody can tell whether they lost entries"
            return [CheckResult("groups", "warning", text, "allow XINFO")]
        if isinstance(info, exceptions.ResponseError):
            return []  # There is no such stream yet.
        found = [
            (group, await _count_lost(connection, stream, named(info), group))
            for group in map(named, groups)
        ]
    return [_lost(group[b"name"].decode(errors="replace"), lost) for group, lost in found]


async def _count_lost(
    connection: RedisConnection, stream: str, info: dict[bytes, Any], group: dict[bytes, Any]
) -> int:
    oldest = b"(" + info[b"first-entry"][0] if info[b"first-entry"] else b"+"
    pending = ("XPENDING", stream, group[b"name"], "-", oldest, _MAX_COUNTED)
    [gone] = await connection.ask(pending)
    return count_trimmed(info, group) + (len(gone) if isinstance(gone, list) else 0)


def _lost(group: str, count: int) -> CheckResult:
    if not count:
        return CheckResult(f"group {group}", "fine", "no entry was deleted before it was handled")
    text = f"at least {count:,} entries were deleted before they were handled"
    cure = "raise max_length or max_age; start its consumer, which tells the range; replay it"
    return CheckResult(f"group {group}", "warning", text, cure)


def _eviction(limit: str, policy: str) -> CheckResult:
    if not policy.startswith("allkeys"):
        return CheckResult("eviction", "fine", f"{policy}: streams are never evicted")
    cure = "CONFIG SET maxmemory-policy noeviction"
    if limit == "0":
        text = f"{policy}: streams will be deleted as soon as maxmemory is set"
        return CheckResult("eviction", "warning", text, cure)
    text = f"{policy}: whole streams are deleted when memory is full, read or not"
    return CheckResult("eviction", "fault", text, cure)


def _persistence(found: dict[str, str]) -> CheckResult:
    if found["appendonly"] != "yes":
        text = "no append-only file: a crash loses what was acknowledged since the last snapshot"
        return CheckResult("persistence", "warning", text, "CONFIG SET appendonly yes")
    match found["appendfsync"]:
        case "always":
            text = "every acknowledged event is on disk"
        case "everysec":
            text = "a crash of the machine may lose the last second, one of Redis nothing"
        case other:
            text = f"appendfsync {other}: a crash of the machine may lose half a minute or more"
            return CheckResult("persistence", "warning", text, "CONFIG SET appendfsync everysec")
    return CheckResult("persistence", "fine", text)
