"""Users of a real Redis, with the permissions that the guide lists."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from redis.asyncio import Redis

GUIDE = Path(__file__).parents[3] / "docs/guides/redis.md"


def with_user(url: str, user: str, password: str) -> str:
    return url.replace("redis://", f"redis://{user}:{password}@", 1)


async def with_documented_rights(role: str, url: str, client: Redis, stream: str) -> str:
    """The URL of a new user with the permissions that the guide lists for a role."""
    _, _, after = GUIDE.read_text().partition(f"ACL SETUSER {role} ")
    rules = after.partition("```")[0].partition("ACL")[0].replace("~events", f"~{stream}")
    user = uuid4().hex
    await client.execute_command("ACL", "SETUSER", user, *rules.split())
    return with_user(url, user, "secret")
