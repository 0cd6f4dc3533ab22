"""Whether the server keeps what it acknowledged: eviction and persistence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from outrider.ports import CheckResult

if TYPE_CHECKING:
    from outrider.brokers.redis.connection import ConnectionPool

_SETTINGS: Final = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync")


async def check_durability(pool: ConnectionPool) -> list[CheckResult]:
    async with pool.connection() as connection:
        replies = await connection.ask(*(("CONFIG", "GET", name) for name in _SETTINGS))
    if any(not isinstance(reply, list) or not reply for reply in replies):
        text = "its settings may not be read: nobody can tell what an acknowledgement is worth"
        return [CheckResult("durability", "warning", text, "allow CONFIG GET, or ask who runs it")]
    found = {name: reply[1].decode() for name, reply in zip(_SETTINGS, replies, strict=True)}
    return [_eviction(found["maxmemory"], found["maxmemory-policy"]), _persistence(found)]


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
