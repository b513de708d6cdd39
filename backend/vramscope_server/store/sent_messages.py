"""Which messages were sent, for server processes that share a database: each message is claimed before it is sent."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.answers.runs import RunRow
from vramscope_server.store.processes import living
from vramscope_server.store.run_queries import rows_seen_since
from vramscope_server.store.tables import runs, sent_messages


def claim(connection: Connection, run: str, kind: str, owner: int, now_ns: int) -> bool:
    """Whether this process sends the message: nobody else has claimed it."""
    values = {"run": run, "kind": kind, "owner": owner, "now": now_ns}
    return connection.execute(_CLAIM, values).rowcount == 1


def settle(connection: Connection, run: str, kind: str) -> None:
    """Note that it was sent, or given up after the last try."""
    one = (sent_messages.c.run == run, sent_messages.c.kind == kind)
    connection.execute(sent_messages.update().where(*one).values(settled=True))


def release_abandoned(connection: Connection) -> list[str]:
    """Remove claims of processes that died before they sent. Returns the runs."""
    alive = living(connection)
    dead = sa.and_(~sent_messages.c.settled, sent_messages.c.owner.not_in(alive))
    found = connection.execute(sent_messages.delete().where(dead).returning(sent_messages.c.run))
    return sorted(set(found.scalars()))


def unsent_rows(connection: Connection, since_ns: int, released: Sequence[str]) -> list[RunRow]:
    """Rows of runs that sent something since then, and of runs whose claims were removed."""
    # A deleted run needs no message, and its identifier may come again.
    gone = sent_messages.c.run.not_in(sa.select(runs.c.id))
    connection.execute(sent_messages.delete().where(gone, sent_messages.c.settled))
    return rows_seen_since(connection, since_ns, released)


_CLAIM = sa.text(
    "INSERT INTO sent_messages (run, kind, time_ns, owner, settled) VALUES (:run, :kind, :now, :owner, false) "
    "ON CONFLICT (run, kind) DO NOTHING"
)
