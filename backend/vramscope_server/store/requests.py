"""Requests to live sessions (``requests`` of messages.Ack): each is sent once, with the answer to a stored batch."""

from __future__ import annotations

from typing import Final

from vramscope.protocol import messages
from vramscope_server.store.writer_records import RunRecord, SessionRecord

JUST_NOW_NS: Final = 20_000_000_000
"""Maximum age of an out-of-memory record, in nanoseconds: an older one was spooled, and the other ranks' state now says
nothing about it."""


class Requests:
    """Open requests, in memory only: a restarted server has none. One thread only."""

    def __init__(self) -> None:
        self._asked: dict[str, set[str]] = {}  # by session
        self._delivered: list[str] = []

    def ask(self, session: SessionRecord, request: str) -> None:
        """Send a request with the next answer."""
        self._asked.setdefault(session.row.id, set()).add(request)

    def tell(self, session_id: str) -> list[str]:
        """Requests for an answer, which is sent once its batch is committed: see :meth:`committed`, :meth:`rolled_back`."""
        words = self._asked.get(session_id)
        if not words:
            return []
        self._delivered.append(session_id)
        return sorted(words)

    def committed(self) -> None:
        """The answers are sent: forget their requests."""
        for session_id in self._delivered:
            self.forget(session_id)
        self._delivered = []

    def rolled_back(self) -> None:
        """The answers are not sent: repeat their requests."""
        self._delivered = []

    def forget(self, session_id: str) -> None:
        """Drop all requests of a session."""
        self._asked.pop(session_id, None)

    # -- bystanders of an out-of-memory error

    def ran_out(self, run: RunRecord, session: SessionRecord, piece: messages.Piece) -> None:
        """Ask the other ranks for their state after a recent out-of-memory record, before their launcher ends them. Ranks
        that have not reported yet are asked with their first batch (:meth:`ask_bystander`)."""
        at_ns = piece.about.get("time_ns")
        if not isinstance(at_ns, int):
            return
        run.ran_out_ns = max(run.ran_out_ns, at_ns - (session.skew.skew_ns or 0))
        for other in run.current:
            if other is not session and other.row.state == "running":
                self.ask_bystander(run, other)

    def ask_bystander(self, run: RunRecord, session: SessionRecord) -> None:
        """Ask a session for its state, if a rank ran out of memory just now and the session already existed then."""
        was_there = session.row.started_ns - (session.skew.skew_ns or 0) < run.ran_out_ns
        if was_there and session.row.last_seen_ns - run.ran_out_ns < JUST_NOW_NS:
            self.ask(session, messages.RECORD_BYSTANDER)
