"""The outbox, in a chain with the tables whose changes it tells of."""

from alembic import op

from outrider import OutboxNames
from outrider.integrations import alembic as outbox

revision, down_revision = "v2", "v1"
names = OutboxNames(table="outbox_events")


def upgrade() -> None:
    outbox.upgrade(op, names=names, to=5)


def downgrade() -> None:
    outbox.downgrade(op, names=names, since=5)
