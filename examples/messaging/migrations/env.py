"""Alembic's way into the database: through the application's own engine."""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection

from examples.messaging.models import OUTBOX_NAMES, Base
from examples.messaging.settings import Settings
from outrider import open_engine
from outrider.integrations.alembic import include_object


def migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_object=include_object(OUTBOX_NAMES),
    )
    with context.begin_transaction():
        context.run_migrations()


async def main() -> None:
    given = context.config.attributes.get("database_url")
    engine = open_engine(given or Settings.read(os.environ).database_url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()


asyncio.run(main())
