"""State of the writer: runs, sessions and ranks that are being written, and the changes that are not written yet.

All of it can be read back from the database, and is dropped whenever a transaction fails. One thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.answers.runs import RunRow
from vramscope_server.store import agent_requests
from vramscope_server.store.artifacts import ArtifactRecord, delete_artifacts, superfluous
from vramscope_server.store.audit_log import Action, Done
from vramscope_server.store.batch_checks import check_sender
from vramscope_server.store.batch_errors import BadBatch, UnknownSession
from vramscope_server.store.list_row import run_row
from vramscope_server.store.pending_writes import PendingWrites
from vramscope_server.store.processes import is_shared
from vramscope_server.store.rank_summary import RankSummary
from vramscope_server.store.run_cache import RunCache
from vramscope_server.store.run_loading import baselines, live_runs, silent_runs
from vramscope_server.store.run_states import add_sequence, display_skew_ns
from vramscope_server.store.silence import Silence
from vramscope_server.store.small_chunks import SmallChunks, Stream, small_streams
from vramscope_server.store.stored_rows import RunChange
from vramscope_server.store.tables import artifacts, chunks, events, ranks, run_jobs, runs, scans, sessions
from vramscope_server.store.validation import ReadyBatch, ReadyBlock
from vramscope_server.store.writer_records import RankRecord, RunRecord, SessionRecord

ANNOUNCE_NS: Final = 2_000_000_000
"""Minimum time between two announcements of a running run's row."""
COMPARE_NS: Final = 30_000_000_000
"""Time between two searches for runs that other processes ended."""


@dataclass(slots=True)
class BatchNews:
    """What a batch brought, for live events."""

    project: str
    run_id: str
    rank: int
    skew_ns: int
    blocks: list[ReadyBlock]
    scan: messages.Scan | None = None
    recordings: Sequence[str] = ()
    """Identifiers of artifacts that are now complete."""


class IngestState:
    """Enter batches, then :meth:`write` them, commit, and :meth:`take_news`."""

    def __init__(self, *, clock: Callable[[], int], lost_after_ns: int) -> None:
        self._clock = clock
        self._silence = Silence(clock(), lost_after_ns)
        self._runs = RunCache()
        self._pending = PendingWrites()
        self._small = SmallChunks()
        self._live: set[str] = set()
        self._unmerged: list[Stream] = []
        """Streams of runs that the open transaction ends, if other processes may have stored parts of them."""
        self._compared_ns = 0
        self.forget()

    def forget(self) -> None:
        """Drop everything that may differ from the database."""
        self._runs.forget()
        self._pending.clear()
        self._unmerged.clear()
        self._news: list[BatchNews] = []
        self._stale = True

    def load(self, connection: Connection) -> None:
        """Read the state that is needed before the first batch."""
        self._runs.load(connection)
        self._live = set(live_runs(connection))
        self._small.load(connection)
        self._stale = False

    def begin_transaction(self) -> None:
        """Called at the start of each transaction."""
        self._runs.begin_transaction()

    def lock(self, connection: Connection, run_ids: Sequence[str]) -> None:
        """Lock all runs that the transaction will change, so that no other process does."""
        if self._stale:
            self.load(connection)
        self._runs.lock(connection, run_ids)

    # -- entering

    def enter(self, connection: Connection, ready: ReadyBatch) -> messages.Ack:
        """Enter a batch, in memory; :meth:`write` stores it. Returns the answer to send after the commit.

        Raises BadBatch, before anything is changed, if the batch contradicts what is stored; UnknownSession if the sender
        is unknown.
        """
        if self._stale:
            self.load(connection)
        batch = ready.batch
        run = self._runs.of_session(connection, batch) or self._runs.find(connection, batch.run)
        session = run.sessions.get(batch.session) if run is not None else None
        check_sender(connection, run, session, ready)
        self._check_pieces(connection, run, batch)
        if session is None:
            attached = next((m for m in batch.messages if isinstance(m, messages.Attached)), None)
            if attached is None:
                expected = "a first batch with Attached: who sends this is not known"
                raise UnknownSession("session", batch.session, expected)
            if run is None:
                run = self._runs.begin(connection, batch, attached, ready.received_ns)
            session = self._new_session(run, batch, attached, ready.received_ns)
            session.row.token = ready.sender.token
            agent_requests.ask_bystander(run, session)
        assert run is not None
        last, new = add_sequence(session.row.last_sequence, session.row.early, batch.sequence)
        session.row.last_sequence = last
        session.skew.see(batch.sent_ns, ready.received_ns)
        session.row.skew_ns = session.skew.skew_ns
        session.row.last_seen_ns = run.row.last_seen_ns = ready.received_ns
        session.dirty = run.dirty = True
        if session.row.state == "lost":
            session.row.state = "running"
        if new:
            self._enter_new(run, session, ready)
        return messages.Ack(accepted=last, requests=agent_requests.take(session))

    def _enter_new(self, run: RunRecord, session: SessionRecord, ready: ReadyBatch) -> None:
        batch = ready.batch
        number = batch.rank
        rank = run.ranks[number]
        scan = None
        recordings: list[str] = []
        for message in batch.messages:
            if isinstance(message, messages.Attached):
                run.attach(session, message)
            elif isinstance(message, messages.Event):
                self._pending.event(run, number, message.time_ns, message.kind, message.step, message.data)
            elif isinstance(message, messages.Scan):
                if session.take_scan(message, batch.sequence) and rank.session_id == batch.session:
                    scan = message
            elif isinstance(message, messages.Techniques):
                known = session.row.techniques
                if known is None or message.step >= known.get("step", 0):
                    session.row.techniques = msgspec.to_builtins(message)
                    run.announce = True
            elif isinstance(message, messages.Piece):
                if self._piece(run, batch, message, ready.received_ns):
                    recordings.append(message.artifact)
                    if message.kind == "oom":
                        agent_requests.ran_out(run, session, message)
            elif isinstance(message, messages.Overhead):
                session.row.overhead = msgspec.to_builtins(message)
                dropped = session.row.dropped_samples  # only grows; batches may arrive out of order
                session.row.dropped_samples = max(dropped, message.dropped_samples or 0)
            elif isinstance(message, messages.Ended):
                session.end(message)
                sender = ready.sender
                if session.row.token not in (None, sender.token):
                    ended = Done(Action.session_ended, run.row.id, run.row.name, run.row.project)
                    self._pending.audit(sender.actor, ended)
                for tail in message.tails:
                    rank.summary.end(tail)
                    rank.dirty = True
        if scan is not None:
            run.scans_changed = run.announce = True
        for block in ready.blocks:
            rank.summary.add(block.stream, block.columns)
            rank.dirty = True
        for chunk in ready.chunks:
            values = {name: getattr(chunk, name) for name in chunk.__slots__}
            self._pending.chunk((run.row.key, number, chunk.device, chunk.stream), values)
        if recordings:
            run.announce = True
        if ready.blocks or scan is not None or recordings:
            skew = display_skew_ns(session.skew.skew_ns)
            self._news.append(BatchNews(run.row.project, run.row.id, number, skew, ready.blocks, scan, recordings))

    def _check_pieces(self, connection: Connection, run: RunRecord | None, batch: messages.Batch) -> None:
        for piece in {p.artifact: p for p in batch.messages if isinstance(p, messages.Piece)}.values():
            record = run.artifacts.get(piece.artifact) if run is not None else None
            if record is not None:
                record.check(piece)
                continue
            elsewhere = any(piece.artifact in other.artifacts for other in self._runs)
            known = sa.select(artifacts.c.id).where(artifacts.c.id == piece.artifact)
            if elsewhere or connection.execute(known).first() is not None:
                raise BadBatch("piece.artifact", piece.artifact, "an id that no other run has given to an artifact")

    def _piece(self, run: RunRecord, batch: messages.Batch, piece: messages.Piece, now_ns: int) -> bool:
        """Enter a piece. Returns whether its artifact is now complete."""
        record = run.artifacts.get(piece.artifact)
        if record is None:
            record = ArtifactRecord.begin(piece, run.row.key, batch.session, batch.rank, now_ns)
            run.artifacts[piece.artifact] = record
        if not record.take(piece, now_ns):
            return False
        self._pending.piece(piece)
        for ident in superfluous(run.artifacts.values()):
            del run.artifacts[ident]
            self._pending.superfluous.append(ident)
        return record.whole

    def _new_session(
        self, run: RunRecord, batch: messages.Batch, attached: messages.Attached, now_ns: int
    ) -> SessionRecord:
        start_ns = attached.start_ns
        ended = run.row.state != "running"
        rank = run.ranks.get(batch.rank)
        before = run.sessions[rank.session_id].row if rank is not None else None
        older = before is not None and start_ns < before.started_ns
        if not run.new and not older:
            restarted = before is not None and before.attempt == run.row.attempt
            # A rank that reports only after the others ended, but started before, belongs to the same attempt.
            resumed = ended and (restarted or start_ns > (run.row.ended_ns or run.row.last_seen_ns))
            if resumed:
                run.row.attempt += 1
            attached_again = (
                before is not None
                and before.attached is not None
                and rank is not None
                and not rank.summary.steps
                and (before.attached.get("host"), before.attached.get("pid")) == (attached.host, attached.pid)
            )  # by the script itself, under ``vramscope run``, before its first step
            if (before is not None or resumed) and not attached_again:
                self._pending.event(run, batch.rank, start_ns, "resumed", None, {"session": batch.session})
        attempt = before.attempt if before is not None and older else run.row.attempt
        session = SessionRecord.begin(run, batch, attached, attempt, now_ns)
        run.sessions[batch.session] = session
        self._runs.add_session(run, batch.session)
        self._pending.sessions.append(session)
        if rank is None:
            run.ranks[batch.rank] = RankRecord(batch.session, RankSummary(), new=True, dirty=True)
        elif not older:
            run.sessions[rank.session_id].scan = None  # the memory of that process is gone
            rank.session_id, rank.dirty, run.scans_changed = batch.session, True, True
        return session

    # -- writing

    def write(self, connection: Connection) -> None:
        """Write all changes in the open transaction."""
        dirty = [run for run in self._runs if run.dirty]
        ended: list[int] = []
        for run in dirty:
            before = run.row.state
            run.refresh()
            run.count_change()
            if run.row.state == "running":
                self._live.add(run.row.id)
            elif before == "running":
                ended.append(run.row.key)
        self._pending.write(connection, dirty)
        if is_shared(connection):
            self._unmerged = [stream for key in ended for stream in small_streams(connection, key)]

    def take_news(self) -> tuple[list[BatchNews], list[RunRow], list[tuple[Stream, int]]]:
        """After the commit: what was stored, the rows of runs to announce, and the streams to merge."""
        now = self._clock()
        rows: list[RunRow] = []
        full: list[tuple[Stream, int]] = []
        for values in self._pending.chunks:
            stream = (values["run_key"], values["rank"], values["device"], values["stream"])
            full.extend(self._small.add(stream, values["level"], values["rows"]))
        for run in self._runs:
            if run.dirty:
                if run.announce or now - run.announced_ns >= ANNOUNCE_NS:
                    rows.append(run_row(run.row))
                    run.announced_ns = now
                    run.announce = False
                if run.row.state != "running":
                    self._live.discard(run.row.id)
                    # The rest of an ended run is merged once more, however small it is.
                    full.extend((stream, -1) for stream in self._small.forget(run.row.key))
                run.clean()
        stored, self._news = self._news, []
        full.extend((stream, -1) for stream in self._unmerged)
        self._unmerged.clear()
        self._pending.clear()
        return stored, rows, full

    # -- other changes

    def replace_chunks(
        self, connection: Connection, stream: Stream, gone: list[int], merged: list[dict[str, Any]]
    ) -> bool:
        """Replace small chunks by merged ones, if all of them still exist (the run may be deleted)."""
        if self._stale:
            self.load(connection)
        key, rank, device, name = stream
        run = connection.execute(sa.select(runs.c.id, runs.c.state).where(runs.c.key == key)).first()
        if run is None:
            return False
        self._runs.lock(connection, [run.id])
        of_stream = (chunks.c.run_key == key, chunks.c.rank == rank, chunks.c.device == device, chunks.c.stream == name)
        these = sa.and_(chunks.c.key.in_(gone), *of_stream)
        if connection.execute(sa.select(sa.func.count()).where(these)).scalar() != len(gone):
            return False  # another process was faster
        connection.execute(chunks.delete().where(these))
        for values in merged:
            self._pending.chunk(stream, values, is_last=run.state != "running")
        return True

    def tick(self, connection: Connection, leads: bool = True) -> None:
        """Find the runs that fell silent. Called every second. Of several server processes only the one that leads does."""
        if self._stale:
            self.load(connection)
        now = self._clock()
        has_listened = self._silence.tick(now)
        if is_shared(connection):
            if now - self._compared_ns > COMPARE_NS:
                self._compared_ns = now
                self._drop_ended(connection)
            silent = self._silent(connection, now) if leads and has_listened else []
        else:
            silent = list(self._live)
        for run_id in silent:
            run = self._runs.find(connection, run_id)
            if run is None:
                self._live.discard(run_id)
            elif has_listened:
                run.lose_silent(now, self._silence)

    def _silent(self, connection: Connection, now: int) -> list[str]:
        """Runs with a silent session, whichever process it sent to. In one order for all."""
        found = silent_runs(connection, now, self._silence)
        self._runs.lock(connection, found)
        return found

    def _drop_ended(self, connection: Connection) -> None:
        """Forget what this process knows of runs that others ended."""
        live = set(live_runs(connection))
        for run in [run for run in self._runs if run.row.id in self._live - live]:
            self._small.forget(run.row.key)
        self._runs.drop_ended(live)
        self._live &= live

    def change(self, connection: Connection, run_id: str, changes: RunChange) -> RunRow:
        """Set project, name, tags, note, pinned or baseline. Returns the row. Raises LookupError for an unknown run."""
        others = baselines(connection, run_id, changes.get("project")) if changes.get("baseline") else []
        self._runs.lock(connection, [run_id, *others])  # all at once: see processes.lock_all
        run = self._runs.find(connection, run_id)
        if run is None:
            raise LookupError(run_id)
        project = changes.get("project", run.row.project)
        if project != run.row.project:  # the other project may have a baseline of its own
            changes = {"baseline": False, **changes}
        for other_id in others:
            other = self._runs.find(connection, other_id)
            if other is not None and other is not run and other.row.project == project:
                other.row.baseline = False
                other.dirty = other.announce = True
        run.row.update(changes)
        run.dirty = run.announce = True
        return run_row(run.row)

    def delete(self, connection: Connection, run_id: str) -> None:
        """Delete a run with all of its data. Raises LookupError; ValueError for a live run."""
        run = self._runs.find(connection, run_id)
        if run is None:
            raise LookupError(run_id)
        if run.row.state == "running":
            raise ValueError("the run is live")
        key = run.row.key
        delete_artifacts(connection, artifacts.c.run_key == key)
        for table in (chunks, events, scans, ranks, run_jobs, sessions):
            connection.execute(table.delete().where(table.c.run_key == key))
        connection.execute(runs.delete().where(runs.c.key == key))
        self._runs.drop(run)
        self._small.forget(key)

    def delete_artifact(self, connection: Connection, run_id: str, ident: str) -> None:
        """Delete an artifact of a run. Raises LookupError for an unknown run or artifact."""
        run = self._runs.find(connection, run_id)
        if run is None or run.artifacts.pop(ident, None) is None:
            raise LookupError(ident)
        delete_artifacts(connection, artifacts.c.id == ident)
        run.dirty = run.announce = True

    def ask(self, connection: Connection, run_id: str, rank: int | None, request: str) -> list[int]:
        """Send a request with the next Ack of each live session, of one rank or of all. Returns their ranks.

        Raises LookupError for an unknown run.
        """
        run = self._runs.find(connection, run_id)
        if run is None:
            raise LookupError(run_id)
        live = [s for s in run.current if s.row.state == "running" and rank in (None, s.row.rank)]
        for session in live:
            agent_requests.ask(run, session, request)
        return sorted(int(session.row.rank) for session in live)
