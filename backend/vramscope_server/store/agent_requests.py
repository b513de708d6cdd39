"""Requests to agents (``requests`` of messages.Ack): each is sent once, with the answer to a stored batch.

They are kept in the session's row and removed by the transaction that stores the batch, so that any server process may
send them.
"""

from __future__ import annotations

from typing import Final

from vramscope.protocol import messages
from vramscope_server.store.writer_records import RunRecord, SessionRecord

JUST_NOW_NS: Final = 20_000_000_000
"""Maximum age of an out-of-memory record, in nanoseconds: an older one was spooled, and the other ranks' state now says
nothing about it."""


def ask(run: RunRecord, session: SessionRecord, request: str) -> None:
    """Send a request with the next answer."""
    if request not in session.row.requests:
        session.row.requests = sorted([*session.row.requests, request])
        session.dirty = run.dirty = True


def take(session: SessionRecord) -> list[str]:
    """Take the requests for an answer, which is sent once its batch is committed."""
    words = session.row.requests
    if words:
        session.row.requests = []
    return words


# -- bystanders of an out-of-memory error


def ran_out(run: RunRecord, session: SessionRecord, piece: messages.Piece) -> None:
    """Ask the other ranks for their state after a recent out-of-memory record, before their launcher ends them. Ranks
    that have not reported yet are asked with their first batch (:func:`ask_bystander`)."""
    at_ns = piece.about.get("time_ns")
    if not isinstance(at_ns, int):
        return
    run.ran_out_ns = max(run.ran_out_ns, at_ns - (session.skew.skew_ns or 0))
    for other in run.current:
        if other is not session and other.row.state == "running":
            ask_bystander(run, other)


def ask_bystander(run: RunRecord, session: SessionRecord) -> None:
    """Ask a session for its state, if a rank ran out of memory just now and the session already existed then."""
    was_there = session.row.started_ns - (session.skew.skew_ns or 0) < run.ran_out_ns
    if was_there and session.row.last_seen_ns - run.ran_out_ns < JUST_NOW_NS:
        ask(run, session, messages.RECORD_BYSTANDER)
