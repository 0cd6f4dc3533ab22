"""The messages."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "v1", None


def message_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("channel_id", sa.Uuid(), nullable=False),
        sa.Column("template_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.String(255), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "group_messages",
        *message_columns(),
        sa.Column("contact_group_ids", sa.JSON(), nullable=False),
        sa.Column("total_recipients", sa.Integer(), nullable=False),
        sa.Column("scheduled_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "scheduled_messages",
        *message_columns(),
        sa.Column("send_type", sa.String(255), nullable=False),
        sa.Column("scheduled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("timezone", sa.String(255), nullable=False),
        sa.Column("is_recurring", sa.Boolean(), nullable=False),
        sa.Column("recurrence_rule", sa.String(255)),
        sa.Column("recurrence_end_at", sa.DateTime(timezone=True)),
        sa.Column("next_trigger_at", sa.DateTime(timezone=True)),
    )
    for table in ("group_messages", "scheduled_messages"):
        op.create_index(f"ix_{table}_account_id", table, ["account_id"])


def downgrade() -> None:
    op.drop_table("scheduled_messages")
    op.drop_table("group_messages")
