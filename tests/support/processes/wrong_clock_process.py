"""A relay with a wrong clock: it leases lanes, prints how many, and dies."""

import asyncio
import datetime as dt
import os
import sys
import time

URL, WRONG_BY = sys.argv[1], int(sys.argv[2])
_datetime, _time = dt.datetime, time.time


class WrongDatetime(_datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _datetime:  # type: ignore[override]
        return _datetime.now(tz) + dt.timedelta(seconds=WRONG_BY)


dt.datetime = WrongDatetime  # type: ignore[misc]
time.time = lambda: _time() + WRONG_BY


async def main() -> None:
    # These modules import the class by name, so it is replaced there, too.
    from uuid import uuid4

    from sqlalchemy.ext.asyncio import create_async_engine

    from outrider import SqlOutboxStore

    store = SqlOutboxStore(create_async_engine(URL))
    await store.open(lambda _source: None)
    lease = await store.lease(uuid4(), "wrong", dt.timedelta(minutes=20))
    print(len(lease.lanes), flush=True)
    os._exit(0)


asyncio.run(main())
