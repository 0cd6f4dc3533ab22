"""Tables, and the unit of work that commits changes and events together."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import ClassVar

from sqlalchemy import String
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase

from outrider import UtcDateTime, create_all

UnitOfWork = Callable[[], AbstractAsyncContextManager[AsyncSession]]
"""Begins a transaction that commits at the end of its block, or undoes all if that fails."""


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {datetime: UtcDateTime, str: String(255)}


def units_of_work(engine: AsyncEngine) -> UnitOfWork:
    return async_sessionmaker(engine, expire_on_commit=False).begin


async def create_tables(engine: AsyncEngine) -> None:
    """Those of the outbox and the inbox first: theirs are made under a lock."""
    await create_all(engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
