"""A token has a role instead of scopes, and a session knows the token that began it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("role", sa.String(length=16), nullable=False, server_default="read"))
    tokens = sa.table("tokens", sa.column("id"), sa.column("scopes", sa.JSON()), sa.column("role"))
    connection = op.get_bind()
    for row in connection.execute(sa.select(tokens.c.id, tokens.c.scopes)).all():
        change = tokens.update().where(tokens.c.id == row.id).values(role=_role_of(row.scopes))
        connection.execute(change)
    with op.batch_alter_table("tokens") as table:
        table.drop_column("scopes")
        table.alter_column("role", existing_type=sa.String(length=16), server_default=None)
    op.add_column("sessions", sa.Column("token", sa.String(length=16), nullable=True))


def _role_of(scopes: list[str]) -> str:
    """A token of both scopes could do everything."""
    return "admin" if {"ingest", "read"} <= set(scopes) else "write" if "ingest" in scopes else "read"
