"""Whether a sender may send a batch: its project, and who may end a session."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.store.batch_errors import BadBatch, OtherProject, OtherToken
from vramscope_server.store.tables import tokens
from vramscope_server.store.validation import ReadyBatch
from vramscope_server.store.writer_records import RunRecord, SessionRecord

MAX_GAPS = 1000
"""Maximum number of ranges of batches that arrived beyond a gap."""


def check_sender(
    connection: Connection, run: RunRecord | None, session: SessionRecord | None, ready: ReadyBatch
) -> None:
    """Raises OtherProject, OtherToken, or BadBatch if the batch contradicts what is stored of its session."""
    _check_project(run, session, ready)
    if session is None:
        return
    batch = ready.batch
    if session.row.rank != batch.rank:
        raise BadBatch("rank", batch.rank, f"{session.row.rank}, as in this session's other batches")
    if len(session.row.early) >= MAX_GAPS:
        raise BadBatch("sequence", batch.sequence, f"the batches missing since {session.row.last_sequence}")
    _check_end(connection, session, ready)


def _check_project(run: RunRecord | None, session: SessionRecord | None, ready: ReadyBatch) -> None:
    """Raises OtherProject if the sender may not send this run. A session that it began goes on after the run was moved."""
    scope, token = ready.sender.scope, ready.sender.token
    if scope.names is None or (session is not None and session.row.token == token):
        return
    attached = next((m.project for m in ready.batch.messages if isinstance(m, messages.Attached)), None)
    if attached is not None and not scope.has(attached):
        raise OtherProject("project", attached, scope.words)
    if run is not None and not scope.has(run.row.project):  # its name is not for this sender
        raise OtherProject("project", "another project's run", scope.words)


def _check_end(connection: Connection, session: SessionRecord, ready: ReadyBatch) -> None:
    """Raises OtherToken if the batch ends a session that another token began. One that was revoked cannot end it any more."""
    began, sender = session.row.token, ready.sender
    if sender.is_admin or began in (None, sender.token):
        return
    if not any(isinstance(message, messages.Ended) for message in ready.batch.messages):
        return
    if connection.execute(sa.select(tokens.c.id).where(tokens.c.id == began)).first() is not None:
        raise OtherToken("messages.type", "ended", "the end of a session that this token began: another token began it")
