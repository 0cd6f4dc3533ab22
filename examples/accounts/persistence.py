"""Where both contexts keep their things: tables, mappings, units of work over one session."""

from functools import cache
from uuid import UUID

from sqlalchemy import Column, Enum, String, Table, Uuid, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import registry

from examples.accounts.account import Account, AccountRole, EmailTaken
from examples.accounts.core import Profile
from outrider import create_all, map_outbox

DRIVERS = {"postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}

mapper_registry = registry()
accounts = Table(
    "accounts",
    mapper_registry.metadata,
    Column("id", Uuid, primary_key=True),
    Column("email", String(254), unique=True, nullable=False),
    Column("role", Enum(AccountRole, native_enum=False), nullable=False),
)
profiles = Table(
    "profiles",
    mapper_registry.metadata,
    Column("account_id", Uuid, primary_key=True),
    Column("display_name", String(100), nullable=False),
)


@cache
def map_tables() -> None:
    """Once at start-up; the classes themselves know nothing of it."""
    mapper_registry.map_imperatively(Account, accounts)
    mapper_registry.map_imperatively(Profile, profiles)
    map_outbox()


def open_engine(url: str) -> AsyncEngine:
    address = make_url(url)
    address = address.set(drivername=DRIVERS.get(address.drivername, address.drivername))
    # Seconds to wait: in SQLite for whoever writes just now, in PostgreSQL for a connection.
    return create_async_engine(address, connect_args={"timeout": 30}, hide_parameters=True)


async def create_tables(engine: AsyncEngine) -> None:
    await create_all(engine)
    async with engine.begin() as connection:
        await connection.run_sync(mapper_registry.metadata.create_all)


class SqlAccountUnitOfWork:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, account: Account) -> None:
        self._session.add(account)
        try:
            await self._session.flush()
        except IntegrityError:
            # Without its cause, which quotes the address.
            raise EmailTaken from None

    async def get(self, account_id: UUID) -> Account | None:
        return await self._session.get(Account, account_id)

    async def commit(self) -> None:
        await self._session.commit()


class SqlCoreUnitOfWork:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def add(self, profile: Profile) -> None:
        self._session.add(profile)

    async def get(self, account_id: UUID) -> Profile | None:
        return await self._session.get(Profile, account_id)

    async def commit(self) -> None:
        await self._session.commit()
