"""Alembic's entry: works on the connection that ``store/database.py`` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from vramscope_server.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
