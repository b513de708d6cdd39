"""What the writer knows by heart: runs, sessions and ranks that are being written, and the changes not yet written down.

All of it can be read back from the database; it is forgotten whenever a transaction fails. One thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope import wire

from .batch import BadBatch, ReadyBatch, ReadyBlock, UnknownSession
from .rows import run_row
from .states import Skew, add_sequence, display_skew_ns, run_state
from .summary import RankSummary, aggregate, decode_summary, encode_summary
from .tables import FULL_LEVEL, FULL_ROWS, chunks, events, ranks, runs, sessions

MERGE_COUNT: Final = 16
"""So many small chunks of one level are merged into one of the next."""
MAX_GAPS: Final = 1000
ANNOUNCE_NS: Final = 2_000_000_000
"""While a run runs, its row is announced so often."""
_KEEP_RUNS: Final = 256

Stream = tuple[int, int, int, str]
"""run key, rank, device, stream"""


@dataclass(slots=True)
class Stored:
    """One batch's new rows, for those who watch live."""

    run_id: str
    rank: int
    skew_ns: int
    blocks: list[ReadyBlock]


@dataclass(slots=True)
class _Session:
    values: dict[str, Any]
    skew: Skew
    dirty: bool = False


@dataclass(slots=True)
class _Rank:
    session_id: str
    summary: RankSummary
    new: bool = False
    dirty: bool = False


@dataclass(slots=True)
class _Run:
    values: dict[str, Any]
    sessions: dict[str, _Session] = field(default_factory=dict)
    ranks: dict[int, _Rank] = field(default_factory=dict)
    new: bool = False
    dirty: bool = False
    announce: bool = False
    announced_ns: int = 0

    @property
    def current(self) -> list[_Session]:
        """The newest session of each rank that takes part in the current attempt."""
        newest = (self.sessions[rank.session_id] for rank in self.ranks.values())
        return [session for session in newest if session.values["attempt"] == self.values["attempt"]]


class Book:
    """Enter batches, then :meth:`write` them, commit, and :meth:`take_news`."""

    def __init__(self, *, clock: Callable[[], int], lost_after_ns: int) -> None:
        self._clock = clock
        self._lost_after_ns = lost_after_ns
        self._started_ns = clock()
        self._runs: dict[str, _Run] = {}
        self._run_of_session: dict[str, str] = {}
        self._small: dict[tuple[Stream, int], list[int]] = {}
        self._next_run = self._next_chunk = 1
        self._live: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Drop all that may not be what the database holds."""
        self._runs.clear()
        self._run_of_session.clear()
        self._new_sessions: list[_Session] = []
        self._chunks: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []
        self._news: list[Stored] = []
        self._stale = True

    def load(self, connection: Connection) -> None:
        """Read what must be known before anything can be entered."""
        self._next_run = int(connection.execute(sa.select(sa.func.max(runs.c.key))).scalar() or 0) + 1
        self._next_chunk = int(connection.execute(sa.select(sa.func.max(chunks.c.key))).scalar() or 0) + 1
        self._live = set(connection.execute(sa.select(runs.c.id).where(runs.c.state == "running")).scalars())
        self._small.clear()
        stream = (chunks.c.run_key, chunks.c.rank, chunks.c.device, chunks.c.stream, chunks.c.level)
        counted = sa.select(*stream, sa.func.count(), sa.func.sum(chunks.c.rows)).where(chunks.c.level < FULL_LEVEL)
        for key, rank, device, name, level, count, rows in connection.execute(counted.group_by(*stream)):
            self._small[((key, rank, device, name), level)] = [count, int(rows)]
        self._stale = False

    # -- entering

    def enter(self, connection: Connection, ready: ReadyBatch) -> wire.Ack:
        """Take in one batch, in memory; :meth:`write` puts it down. Returns the answer to give after the commit.

        Raises BadBatch, before anything is changed, if the batch contradicts what is stored; UnknownSession if nobody
        said yet who sends it.
        """
        if self._stale:
            self.load(connection)
        batch = ready.batch
        known = self._session_of(connection, batch)
        run = known or self._find(connection, batch.run)
        session = run.sessions.get(batch.session) if run is not None else None
        if session is not None and session.values["rank"] != batch.rank:
            raise BadBatch("rank", batch.rank, f"{session.values['rank']}, as in this session's other batches")
        if session is not None and len(session.values["early"]) >= MAX_GAPS:
            raise BadBatch("sequence", batch.sequence, f"the batches missing since {session.values['last_sequence']}")

        attached = next((m for m in batch.messages if isinstance(m, wire.Attached)), None)
        if session is None:
            if attached is None:
                raise UnknownSession(
                    "session", batch.session, "a first batch with Attached: who sends this is not known"
                )
            if run is None:
                run = self._new_run(batch, attached, ready.received_ns)
            session = self._new_session(run, batch, attached, ready.received_ns)
        assert run is not None
        last, new = add_sequence(session.values["last_sequence"], session.values["early"], batch.sequence)
        session.values["last_sequence"] = last
        session.skew.see(batch.sent_ns, ready.received_ns)
        session.values["skew_ns"] = session.skew.skew_ns
        session.values["last_seen_ns"] = run.values["last_seen_ns"] = ready.received_ns
        session.dirty = run.dirty = True
        if session.values["state"] == "lost":
            session.values["state"] = "running"
        if not new:
            return wire.Ack(accepted=last)
        rank = run.ranks[batch.rank]
        for message in batch.messages:
            if isinstance(message, wire.Attached):
                self._attach(run, session, message)
            elif isinstance(message, wire.Event):
                self._event(run, batch.rank, message.time_ns, message.kind, message.step, message.data)
            elif isinstance(message, wire.Overhead):
                session.values["overhead"] = msgspec.to_builtins(message)
            elif isinstance(message, wire.Ended):
                session.values.update(
                    state=message.state,
                    ended_ns=message.time_ns,
                    error_type=message.error_type,
                    error_line=message.error_line,
                    dropped_samples=message.dropped_samples,
                )
        for block in ready.blocks:
            rank.summary.add(block.stream, block.columns)
            rank.dirty = True
        for chunk in ready.chunks:
            values = {name: getattr(chunk, name) for name in chunk.__slots__}
            self._add_chunk((run.values["key"], batch.rank, chunk.device, chunk.stream), values)
        if ready.blocks:
            skew = display_skew_ns(session.skew.skew_ns)
            self._news.append(Stored(run.values["id"], batch.rank, skew, ready.blocks))
        return wire.Ack(accepted=last)

    def _session_of(self, connection: Connection, batch: wire.Batch) -> _Run | None:
        run_id = self._run_of_session.get(batch.session)
        if run_id is None:
            query = sa.select(runs.c.id).join(sessions, sessions.c.run_key == runs.c.key)
            run_id = connection.execute(query.where(sessions.c.id == batch.session)).scalar()
        if run_id is None:
            return None
        if run_id != batch.run:
            raise BadBatch("run", batch.run, f"{run_id}, as in this session's other batches")
        return self._find(connection, run_id)

    def _find(self, connection: Connection, run_id: str) -> _Run | None:
        if run_id in self._runs:
            return self._runs[run_id]
        record = connection.execute(sa.select(runs).where(runs.c.id == run_id)).mappings().first()
        if record is None:
            return None
        run = _Run(dict(record))
        key = record["key"]
        for row in connection.execute(sa.select(sessions).where(sessions.c.run_key == key)).mappings():
            run.sessions[row["id"]] = _Session(dict(row), Skew(row["skew_ns"]))
            self._run_of_session[row["id"]] = run_id
        for row in connection.execute(sa.select(ranks).where(ranks.c.run_key == key)).mappings():
            run.ranks[row["rank"]] = _Rank(row["session_id"], decode_summary(row["summary"]))
        self._remember(run)
        return run

    def _remember(self, run: _Run) -> None:
        self._runs[run.values["id"]] = run
        if len(self._runs) > _KEEP_RUNS:
            for run_id, other in list(self._runs.items()):
                if len(self._runs) <= _KEEP_RUNS // 2:
                    break
                if other is not run and not other.dirty and other.values["state"] != "running":
                    del self._runs[run_id]
                    for session in other.sessions:
                        self._run_of_session.pop(session, None)

    def _new_run(self, batch: wire.Batch, attached: wire.Attached, now_ns: int) -> _Run:
        values: dict[str, Any] = {column.name: None for column in runs.columns}
        values |= {
            "key": self._next_run, "id": batch.run, "project": attached.project, "name": attached.name,
            "tags": list(attached.tags), "config": {}, "command": [], "state": "running", "attempt": 1,
            "last_seen_ns": now_ns, "started_ns": attached.start_ns, "pinned": False, "baseline": False,
            "ranks_reporting": 0, "dropped_samples": 0, "sparkline": [],
        }  # fmt: skip
        self._next_run += 1
        run = _Run(values, new=True, dirty=True, announce=True)
        self._remember(run)
        return run

    def _new_session(self, run: _Run, batch: wire.Batch, attached: wire.Attached, now_ns: int) -> _Session:
        start_ns = attached.start_ns
        ended = run.values["state"] != "running"
        rank = run.ranks.get(batch.rank)
        before = run.sessions[rank.session_id].values if rank is not None else None
        older = before is not None and start_ns < before["started_ns"]
        if not run.new and not older:
            restarted = before is not None and before["attempt"] == run.values["attempt"]
            # A rank that speaks up only after the others ended, but started before, belongs to the same attempt.
            if ended and (restarted or start_ns > (run.values["ended_ns"] or run.values["last_seen_ns"])):
                run.values["attempt"] += 1
            if before is not None or ended:
                self._event(run, batch.rank, start_ns, "resumed", None, {"session": batch.session})
        values: dict[str, Any] = {column.name: None for column in sessions.columns}
        values |= {
            "id": batch.session, "run_key": run.values["key"], "rank": batch.rank, "state": "running",
            "attempt": before["attempt"] if before is not None and older else run.values["attempt"],
            "last_sequence": 0, "early": [], "started_ns": start_ns, "last_seen_ns": now_ns, "dropped_samples": 0,
        }  # fmt: skip
        session = _Session(values, Skew())
        run.sessions[batch.session] = session
        self._run_of_session[batch.session] = run.values["id"]
        self._new_sessions.append(session)
        if rank is None:
            run.ranks[batch.rank] = _Rank(batch.session, RankSummary(), new=True, dirty=True)
        elif not older:
            rank.session_id, rank.dirty = batch.session, True
        return session

    def _attach(self, run: _Run, session: _Session, attached: wire.Attached) -> None:
        session.values["attached"] = msgspec.to_builtins(attached)
        session.values["started_ns"] = attached.start_ns
        values = run.values
        # Name and tags are the first session's: what the user has changed since on the page stays changed.
        if attached.rank == min(run.ranks):
            first = attached.devices[0] if attached.devices else None
            values.update(
                config=attached.config,
                command=list(attached.command),
                git_commit=attached.git_commit,
                framework=attached.framework,
                allocator_settings=attached.allocator_settings,
                device=first.name if first else None,
                capacity_bytes=first.total_bytes if first else None,
                world_size=attached.world_size,
            )
        start_ns = attached.start_ns - display_skew_ns(session.skew.skew_ns)
        values["started_ns"] = min(values["started_ns"], start_ns)
        run.announce = True

    def _event(
        self, run: _Run, rank: int, time_ns: int, kind: str, step: int | None, data: dict[str, wire.Scalar]
    ) -> None:
        self._events.append(
            {
                "run_key": run.values["key"],
                "rank": rank,
                "time_ns": time_ns,
                "kind": kind,
                "step": step,
                "data": data,
            }
        )

    def _add_chunk(self, stream: Stream, values: dict[str, Any]) -> None:
        key, rank, device, name = stream
        values |= {"key": self._next_chunk, "run_key": key, "rank": rank, "device": device, "stream": name}
        self._next_chunk += 1
        self._chunks.append(values)

    # -- writing down

    def write(self, connection: Connection) -> None:
        """Put all changes into the open transaction."""
        dirty = [run for run in self._runs.values() if run.dirty]
        for run in dirty:
            self._refresh(run)
        new = [run.values for run in dirty if run.new]
        if new:
            connection.execute(runs.insert(), new)
        old = [run.values for run in dirty if not run.new]
        if old:
            connection.execute(_UPDATE_RUN, [{**values, "b_key": values["key"]} for values in old])
        if self._new_sessions:
            connection.execute(sessions.insert(), [session.values for session in self._new_sessions])
        fresh = {id(session) for session in self._new_sessions}
        changed = [s.values for run in dirty for s in run.sessions.values() if s.dirty and id(s) not in fresh]
        if changed:
            connection.execute(_UPDATE_SESSION, [{**values, "b_id": values["id"]} for values in changed])
        inserted, updated = [], []
        for run in dirty:
            for number, rank in run.ranks.items():
                if rank.dirty:
                    values = {"session_id": rank.session_id, "summary": encode_summary(rank.summary)}
                    key = run.values["key"]
                    if rank.new:
                        inserted.append({"run_key": key, "rank": number, **values})
                    else:
                        updated.append({"b_run": key, "b_rank": number, **values})
        if inserted:
            connection.execute(ranks.insert(), inserted)
        if updated:
            connection.execute(_UPDATE_RANK, updated)
        if self._chunks:
            connection.execute(chunks.insert(), self._chunks)
        if self._events:
            connection.execute(events.insert(), self._events)

    def _refresh(self, run: _Run) -> None:
        """The run's row from its sessions and ranks."""
        values = run.values
        values.update(aggregate(rank.summary for rank in run.ranks.values()))
        current = run.current
        state = run_state(session.values["state"] for session in current)
        values["ranks_reporting"] = sum(session.values["state"] != "lost" for session in current)
        values["dropped_samples"] = sum(s.values["dropped_samples"] for s in run.sessions.values())
        lead = run.sessions[run.ranks[min(run.ranks)].session_id].values
        values["overhead"] = lead["overhead"]
        failed = next((s.values for s in current if s.values["state"] == "failed"), None)
        values["error_type"] = failed["error_type"] if failed else None
        values["error_line"] = failed["error_line"] if failed else None
        if state == "running":
            values["ended_ns"] = None
            self._live.add(values["id"])
        else:
            ends = [
                s.values["ended_ns"] - display_skew_ns(s.values["skew_ns"])
                if s.values["ended_ns"] is not None
                else s.values["last_seen_ns"]
                for s in current
            ]
            values["ended_ns"] = max(ends, default=values["last_seen_ns"])
        if state != values["state"]:
            run.announce = True
            values["state"] = state

    def take_news(self) -> tuple[list[Stored], list[dict[str, Any]], list[tuple[Stream, int]]]:
        """After the commit: what was stored, the rows of runs to announce, and the streams that want merging."""
        now = self._clock()
        rows: list[dict[str, Any]] = []
        full: list[tuple[Stream, int]] = []
        for values in self._chunks:
            stream = (values["run_key"], values["rank"], values["device"], values["stream"])
            full.extend(self.count_chunk(stream, values["level"], values["rows"]))
        for run in self._runs.values():
            if run.dirty:
                if run.announce or now - run.announced_ns >= ANNOUNCE_NS:
                    rows.append(run_row(run.values))
                    run.announced_ns = now
                    run.announce = False
                if run.values["state"] != "running" and run.values["id"] in self._live:
                    self._live.discard(run.values["id"])
                    # What is left of an ended run is merged once more, however little it is.
                    full.extend((stream, -1) for stream in {s for s, _ in self._small if s[0] == run.values["key"]})
            run.new = run.dirty = False
            for session in run.sessions.values():
                session.dirty = False
            for rank in run.ranks.values():
                rank.new = rank.dirty = False
        stored, self._news = self._news, []
        self._chunks, self._events, self._new_sessions = [], [], []
        return stored, rows, full

    def count_chunk(self, stream: Stream, level: int, rows: int) -> list[tuple[Stream, int]]:
        """Note a new small chunk; returns the stream and level if there are now enough of them to merge."""
        if level >= FULL_LEVEL:
            return []
        count = self._small.setdefault((stream, level), [0, 0])
        count[0] += 1
        count[1] += rows
        if count[0] >= MERGE_COUNT or (count[1] >= FULL_ROWS and count[0] > 1):
            del self._small[stream, level]
            return [(stream, level)]
        return []

    # -- other changes

    def replace_chunks(
        self, connection: Connection, stream: Stream, gone: list[int], merged: list[dict[str, Any]]
    ) -> bool:
        """Put merged chunks in the place of small ones, if these are all still there (the run may be deleted)."""
        if self._stale:
            self.load(connection)
        found = connection.execute(sa.select(sa.func.count()).where(chunks.c.key.in_(gone))).scalar()
        if found != len(gone):
            return False
        connection.execute(chunks.delete().where(chunks.c.key.in_(gone)))
        for values in merged:
            self._add_chunk(stream, values)
        return True

    def tick(self, connection: Connection) -> None:
        """Find the runs that fell silent. Called every second."""
        if self._stale:
            self.load(connection)
        now = self._clock()
        for run_id in list(self._live):
            run = self._find(connection, run_id)
            if run is None:
                self._live.discard(run_id)
                continue
            for session in run.sessions.values():
                # A server that was away has heard nobody meanwhile: silence counts from its start.
                heard = max(session.values["last_seen_ns"], self._started_ns)
                if session.values["state"] == "running" and now - heard > self._lost_after_ns:
                    session.values["state"] = "lost"
                    session.dirty = run.dirty = True

    def change(self, connection: Connection, run_id: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Set name, tags, pinned or baseline. Returns the row. Raises LookupError for an unknown run."""
        run = self._find(connection, run_id)
        if run is None:
            raise LookupError(run_id)
        if changes.get("baseline"):
            others = sa.select(runs.c.id).where(runs.c.project == run.values["project"], runs.c.baseline)
            for other_id in connection.execute(others).scalars().all():
                other = self._find(connection, other_id)
                if other is not None and other is not run:
                    other.values["baseline"] = False
                    other.dirty = other.announce = True
        run.values.update(changes)
        run.dirty = run.announce = True
        return run_row(run.values)

    def delete(self, connection: Connection, run_id: str) -> None:
        """Delete a run with everything that belongs to it. Raises LookupError; ValueError for one that is live."""
        run = self._find(connection, run_id)
        if run is None:
            raise LookupError(run_id)
        if run.values["state"] == "running":
            raise ValueError("the run is live")
        key = run.values["key"]
        for table in (chunks, events, ranks, sessions):
            connection.execute(table.delete().where(table.c.run_key == key))
        connection.execute(runs.delete().where(runs.c.key == key))
        del self._runs[run_id]
        for session in run.sessions:
            self._run_of_session.pop(session, None)
        for entry in [entry for entry in self._small if entry[0][0] == key]:
            del self._small[entry]


_UPDATE_RUN: Final = runs.update().where(runs.c.key == sa.bindparam("b_key")).values(
    {column.name: sa.bindparam(column.name) for column in runs.columns if column.name not in ("key", "id")}
)  # fmt: skip
_UPDATE_SESSION: Final = sessions.update().where(sessions.c.id == sa.bindparam("b_id")).values(
    {
        column.name: sa.bindparam(column.name)
        for column in sessions.columns
        if column.name not in ("id", "run_key", "rank")
    }
)  # fmt: skip
_UPDATE_RANK: Final = ranks.update().where(
    ranks.c.run_key == sa.bindparam("b_run"), ranks.c.rank == sa.bindparam("b_rank")
).values(session_id=sa.bindparam("session_id"), summary=sa.bindparam("summary"))  # fmt: skip
