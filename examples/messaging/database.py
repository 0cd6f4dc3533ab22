"""The tables, brought along by the program itself."""

from pathlib import Path

from alembic import command
from alembic.config import Config


def upgrade(url: str) -> None:
    """What `alembic upgrade head` does."""
    config = Config(Path(__file__).with_name("alembic.ini"))
    config.attributes["database_url"] = url
    command.upgrade(config, "head")
