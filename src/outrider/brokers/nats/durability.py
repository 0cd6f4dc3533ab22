"""Checks whether a stream keeps what it acknowledges: storage, replicas, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nats.js.api import DiscardPolicy, StorageType

from outrider.ports import CheckResult

if TYPE_CHECKING:
    from nats.js.api import StreamConfig, StreamInfo

_SAFE_REPLICAS: Final = 3


def check_durability(stream: StreamInfo) -> list[CheckResult]:
    clustered = stream.cluster is not None and bool(stream.cluster.name)
    return [_storage(stream.config, clustered=clustered), _limits(stream.config)]


def missing_stream(name: str) -> CheckResult:
    text = f"stream {name} is missing: events wait"
    return CheckResult("storage", "warning", text, "start a relay, which creates it")


def _storage(config: StreamConfig, *, clustered: bool) -> CheckResult:
    name, replicas = config.name, config.num_replicas or 1
    if config.storage == StorageType.MEMORY:
        text = f"stream {name} is in memory: a restart loses what was acknowledged"
        return CheckResult("storage", "warning", text, "make a stream with storage=file")
    if clustered and replicas < _SAFE_REPLICAS:
        text = f"stream {name} has {replicas} of the 3 replicas that survive the loss of a server"
        return CheckResult("storage", "warning", text, f"nats stream edit {name} --replicas 3")
    return CheckResult("storage", "fine", f"stream {name} is in a file, {replicas} replica(s)")


def _limits(config: StreamConfig) -> CheckResult:
    limits = {
        "messages": config.max_msgs,
        "bytes": config.max_bytes,
        "seconds": config.max_age,
        "messages of a subject": config.max_msgs_per_subject,
    }
    limited = [f"{limit:g} {what}" for what, limit in limits.items() if limit and limit > 0]
    if not limited:
        return CheckResult("limits", "fine", "none: nothing is dropped")
    summary = f"stream {config.name} keeps {', '.join(limited)}"
    if config.discard == DiscardPolicy.NEW and not config.max_age:
        return CheckResult("limits", "fine", f"{summary}, and refuses what is more")
    text = f"{summary} and then silently drops the oldest, read or not"
    return CheckResult(
        "limits", "warning", text, "set discard=new, or limits that are never reached"
    )
