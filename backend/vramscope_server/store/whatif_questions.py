"""Questions of what-if jobs, for server processes that share a database: each can answer for a job of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.tables import whatif_questions

KEPT_NS: Final = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class WhatifTask:
    """A recording, the settings to replay (None: the usual ones), and the memory of the device (None: as recorded)."""

    recording: str
    confs: list[str] | None
    device_bytes: int | None


def keep_question(connection: Connection, ident: str, task: WhatifTask, now_ns: int) -> None:
    """Store the question of a job, and delete those that nobody asked for a day."""
    connection.execute(whatif_questions.delete().where(whatif_questions.c.time_ns < now_ns - KEPT_NS))
    question = {"recording": task.recording, "confs": task.confs, "device_bytes": task.device_bytes}
    connection.execute(_KEEP, {"id": ident, "now": now_ns, "question": question})


def find_question(connection: Connection, ident: str) -> WhatifTask | None:
    """Question of a job."""
    found = connection.execute(sa.select(whatif_questions.c.question).where(whatif_questions.c.id == ident)).scalar()
    return None if found is None else WhatifTask(**found)


_KEEP: Final = sa.text(
    "INSERT INTO whatif_questions (id, time_ns, question) VALUES (:id, :now, :question) "
    "ON CONFLICT (id) DO UPDATE SET time_ns = excluded.time_ns"
).bindparams(sa.bindparam("question", type_=sa.JSON))
