"""What is wanted of live sessions (``requests`` of messages.Ack): each is told once, in the answer to a batch that was stored."""

from __future__ import annotations

from typing import Final

from vramscope.protocol import messages
from vramscope_server.store.records import RunRecord, SessionRecord

JUST_NOW_NS: Final = 20_000_000_000
"""a record that is older was kept on a disk meanwhile: how the others stand now says nothing of then"""


class Requests:
    """In memory alone: a server that starts anew has forgotten them. One thread only."""

    def __init__(self) -> None:
        self._asked: dict[str, set[str]] = {}  # by session
        self._told: list[str] = []

    def ask(self, session: SessionRecord, request: str) -> None:
        """With the next answer."""
        self._asked.setdefault(session.values["id"], set()).add(request)

    def tell(self, session_id: str) -> list[str]:
        """For an answer, which is given once its batch is committed: see :meth:`committed`, :meth:`rolled_back`."""
        words = self._asked.get(session_id)
        if not words:
            return []
        self._told.append(session_id)
        return sorted(words)

    def committed(self) -> None:
        """What was told goes out now."""
        for session_id in self._told:
            self.forget(session_id)
        self._told = []

    def rolled_back(self) -> None:
        """What was told did not go out, and is told again."""
        self._told = []

    def forget(self, session_id: str) -> None:
        """Nothing is wanted of it any more."""
        self._asked.pop(session_id, None)

    # -- of those that stand by while one rank runs out of memory

    def ran_out(self, run: RunRecord, session: SessionRecord, piece: messages.Piece) -> None:
        """A session's record of an error is here: if that was just now, have the others say how they stand, before their launcher
        ends them; those that were not heard of yet, with their first batch (:meth:`ask_bystander`)."""
        at_ns = piece.about.get("time_ns")
        if not isinstance(at_ns, int):
            return
        run.ran_out_ns = max(run.ran_out_ns, at_ns - (session.skew.skew_ns or 0))
        for other in run.current:
            if other is not session and other.values["state"] == "running":
                self.ask_bystander(run, other)

    def ask_bystander(self, run: RunRecord, session: SessionRecord) -> None:
        """Nothing where no rank ran out just now, or this one began only then."""
        was_there = session.values["started_ns"] - (session.skew.skew_ns or 0) < run.ran_out_ns
        if was_there and session.values["last_seen_ns"] - run.ran_out_ns < JUST_NOW_NS:
            self.ask(session, messages.RECORD_BYSTANDER)
