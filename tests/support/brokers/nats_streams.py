"""Streams of a real NATS server, read by nats-py directly."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote
from uuid import uuid4

from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext

from outrider import EventEnvelope
from outrider.brokers import PublishFailed
from outrider.brokers.nats import NatsPublisher
from outrider.outcomes import ACCEPTED, Outcome
from outrider.testing.services import Nats, Server, Services

PASSWORD: Final = "p@ss,/:w"


def unique(what: str = "T") -> str:
    return f"{what}{uuid4().hex}"


@dataclass(frozen=True)
class Message:
    subject: str
    headers: dict[str, str]
    data: bytes

    @property
    def attributes(self) -> dict[str, str]:
        names = {"content-type": "datacontenttype"}
        return {
            names.get(name, name.removeprefix("ce-")): unquote(value)
            for name, value in self.headers.items()
            if name.startswith("ce-") or name in names
        }


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Client]:
    connection = Client()
    await connection.connect(url, allow_reconnect=False, **options)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def jetstream(url: str, **options: Any) -> AsyncIterator[JetStreamContext]:
    async with client(url, **options) as connection:
        yield connection.jetstream()


async def messages_in(url: str, stream: str) -> list[Message]:
    """All messages of the stream, in order."""
    async with jetstream(url) as js:
        state = (await js.stream_info(stream)).state
        if not state.messages:
            return []
        found = await js.subscribe("", stream=stream, ordered_consumer=True)
        messages = [await found.next_msg(timeout=30) for _ in range(state.messages)]
    return [Message(each.subject, each.headers or {}, each.data) for each in messages]


async def outcomes_of(publisher: NatsPublisher, batch: list[EventEnvelope]) -> list[Outcome]:
    try:
        await publisher.publish_all(batch)
    except PublishFailed as failed:
        return list(failed.outcomes)  # type: ignore[arg-type]
    return [ACCEPTED] * len(batch)


def kinds(outcomes: Iterable[Outcome]) -> list[type[Outcome]]:
    return [type(outcome) for outcome in outcomes]


def order_of(messages: Iterable[Message]) -> dict[str, list[str]]:
    """Ids per aggregate, without duplicates."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for message in messages:
        found[message.attributes["subject"]].setdefault(message.attributes["id"])
    return {aggregate: list(ids) for aggregate, ids in found.items()}


def order_sent(batch: Iterable[EventEnvelope]) -> dict[str, list[str]]:
    sent = defaultdict(list)
    for envelope in batch:
        sent[envelope.aggregate_id].append(str(envelope.event_id))
    return sent


async def start(server: Server) -> None:
    """Start the server; return when JetStream has loaded its files."""
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(60):
        while not await _answers(server):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


async def _answers(server: Server) -> bool:
    with suppress(Error, OSError):
        async with jetstream(server.url) as js:
            return bool(await js.account_info())
    return False


class Guarded(Nats):
    """A server with users: `app` may do all, `few` may publish little, `none` nearly nothing, and
    `reader` has what a source of the group billing needs. With a certificate it speaks TLS."""

    certificate: ClassVar[Path | None] = None
    users: ClassVar[list[dict[str, Any]]] = [
        {"user": "app", "password": PASSWORD},
        {
            "user": "few",
            "password": PASSWORD,
            "permissions": {"publish": ["events.ok", "_INBOX.>", "$JS.API.STREAM.INFO.*"]},
        },
        {"user": "none", "password": PASSWORD, "permissions": {"publish": ["events.ok"]}},
        {
            "user": "reader",
            "password": PASSWORD,
            "permissions": {
                "publish": ["$JS.API.>", "$JS.ACK.>", "_INBOX.>", "*.billing"],
                "subscribe": ["_INBOX.>"],
            },
        },
    ]

    def prepare(self) -> None:
        super().prepare()
        path = self.folder / "nats.conf"
        settings = json.loads(path.read_text())
        settings["authorization"] = {"users": self.users}
        if self.certificate:
            key = self.certificate.with_suffix(".key")
            settings["tls"] = {"cert_file": str(self.certificate), "key_file": str(key)}
        path.write_text(json.dumps(settings))

    def url_of(self, user: str) -> str:
        scheme = "tls" if self.certificate else "nats"
        return f"{scheme}://{user}:{quote(PASSWORD, safe='')}@{self.address}"


def start_guarded(services: Services, kind: type[Guarded] = Guarded) -> Guarded:
    return services.another(kind)
