"""A consumer that the test kills: it handles one event and prints each step."""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outrider import EventEnvelope
from tests.support.inbox_shop import OrderPlaced, Shop, invoice


def say_and_wait(what: str) -> None:
    print(what, flush=True)
    sys.stdin.read()


async def main(url: str, where: str, event: str) -> None:
    shop = Shop(create_async_engine(url))

    async def work(event: OrderPlaced, session: AsyncSession) -> None:
        await invoice(event, session)
        if where == "between effect and commit":
            say_and_wait(where)
        # At the first commit, so that nothing can be written after it.
        listen(session.sync_session, "after_commit", lambda _: say_and_wait(where))

    await shop.deliver(EventEnvelope.from_json(event), work)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
