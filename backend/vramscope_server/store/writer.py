"""The only thread of a server process that writes. It owns the only writing connection; all others submit work and wait.

Waiting batches share one transaction and are acknowledged after its commit. The queue is bounded, in number here and in
bytes by ``api/ingest``. When it is full the sender retries later, and nothing piles up.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.answers.runs import RunRow
from vramscope_server.store.batch_errors import BadBatch
from vramscope_server.store.database import Database
from vramscope_server.store.ingest_state import BatchNews, IngestState
from vramscope_server.store.processes import is_shared, take_lead
from vramscope_server.store.storage_errors import storage_trouble
from vramscope_server.store.validation import ReadyBatch

log = logging.getLogger("vramscope_server.writer")
T = TypeVar("T")

MAX_QUEUED: Final = 512
MAX_GROUP: Final = 64
_TICK_SECONDS: Final = 1.0
_PROBE_SECONDS: Final = 1.0
_FORGET_TROUBLE_SECONDS: Final = 60.0


class QueueFull(Exception):
    """Too much work is waiting; retry later."""


class StorageTrouble(Exception):
    """The storage accepts nothing at the moment; the message says why."""


class WriterClosed(Exception):
    """The server is shutting down."""


@dataclass
class Counters:
    """Counters of the writer for ``/metrics``; only its thread changes them."""

    batches: int = 0
    values: int = 0
    commits: int = 0
    commit_seconds: float = 0.0
    failed_commits: int = 0


@dataclass(slots=True)
class _Job:
    """Other work than batches, with a transaction of its own."""

    work: Callable[[Connection, IngestState], Any]
    done: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class _Waiting:
    batch: ReadyBatch
    done: Future[messages.Ack] = field(default_factory=Future)


Listener = Callable[[Sequence[BatchNews], Sequence[RunRow]], None]
"""Called after each commit, on the writer's thread, with what was stored and the rows of runs to announce."""


class Writer:
    """Writes. Start with :meth:`start`, end with :meth:`close`.

    trouble   why nothing can be stored at the moment, or None
    leads     whether this server process does what only one may do; known a second after the start
    """

    def __init__(
        self,
        database: Database,
        *,
        lost_after_seconds: float = 30.0,
        clock: Callable[[], int] = time.time_ns,
        listener: Listener | None = None,
        compact: Callable[[tuple[int, int, int, str], int], None] | None = None,
    ) -> None:
        self._database = database
        self._queue: queue.Queue[_Waiting | _Job | None] = queue.Queue(MAX_QUEUED)
        self._state = IngestState(clock=clock, lost_after_ns=int(lost_after_seconds * 1e9))
        self._clock = clock
        self._listener = listener
        self._compact = compact
        self._connection: Connection | None = None
        self._closed = False
        self._tried_at = self._failed_at = 0.0
        self._thread = threading.Thread(target=self._run, name="vramscope-writer", daemon=True)
        self.trouble: str | None = database.read_only
        self.leads = False
        self.counters = Counters()

    def start(self) -> None:
        """Start the thread. Raises the database's error if it cannot be opened."""
        if self._database.read_only is None:
            self._connection = self._database.writer()
            self._load()
        self._thread.start()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Store what waits, then stop. May be called twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Number of batches and jobs in the queue."""
        return self._queue.qsize()

    def may_try(self) -> bool:
        """Whether a batch may be tried while the storage is in trouble: one every second, to find out whether it still is."""
        now = time.monotonic()
        if self._database.read_only is not None or now - self._tried_at < _PROBE_SECONDS:
            return False
        self._tried_at = now
        return True

    def submit(self, batch: ReadyBatch) -> Future[messages.Ack]:
        """Submit a batch. The future returns the answer to the sender, after the commit.

        Raises QueueFull or WriterClosed. The future raises BadBatch if the batch contradicts what is stored, or
        StorageTrouble.
        """
        waiting = _Waiting(batch)
        self._put(waiting)
        return waiting.done

    def do(self, work: Callable[[Connection, IngestState], T]) -> Future[T]:
        """Submit another change, with a transaction of its own. Raises as :meth:`submit`."""
        job = _Job(work)
        self._put(job)
        return job.done

    def _put(self, item: _Waiting | _Job) -> None:
        if self._closed or (self._thread.ident is not None and not self._thread.is_alive()):
            raise WriterClosed
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            raise QueueFull from None

    # -- the thread

    def _run(self) -> None:
        tick = time.monotonic() + _TICK_SECONDS
        ending = False
        while not ending:
            group: list[_Waiting] = []
            jobs: list[_Job] = []
            try:
                item = self._queue.get(timeout=max(0.01, tick - time.monotonic()))
                while True:
                    if item is None:
                        ending = True
                    elif not item.done.set_running_or_notify_cancel():
                        pass  # nobody waits for it any more; from here on it cannot be cancelled
                    elif isinstance(item, _Job):
                        jobs.append(item)
                    else:
                        group.append(item)
                    if len(group) >= MAX_GROUP:
                        break
                    item = self._queue.get_nowait()
            except queue.Empty:
                pass
            if group:
                self._store(group)
            for job in jobs:
                self._settle(job.done, job.work)
            if time.monotonic() >= tick:
                tick = time.monotonic() + _TICK_SECONDS
                self._settle(Future(), self._tick)
                # Nothing was tried for a while: whether the trouble persists is unknown. A tick that changes nothing says
                # nothing about the disk.
                if self._database.read_only is None and time.monotonic() - self._failed_at > _FORGET_TROUBLE_SECONDS:
                    self.trouble = None
        if self._connection is not None:
            self._fold_log(self._connection)
            self._connection.close()

    def _tick(self, connection: Connection, state: IngestState) -> None:
        self.leads = self.leads or not is_shared(connection) or take_lead(connection)
        state.tick(connection, self.leads)

    def _store(self, group: list[_Waiting]) -> None:
        started = time.perf_counter()
        try:
            with self._transaction() as connection:
                self._state.lock(connection, [waiting.batch.batch.run for waiting in group])
                accepted: list[messages.Ack | BadBatch] = []
                for waiting in group:
                    try:
                        accepted.append(self._state.enter(connection, waiting.batch))
                    except BadBatch as refused:  # enter() refuses before it changes anything
                        accepted.append(refused)
                self._state.write(connection)
        except StorageTrouble as trouble:
            for waiting in group:
                waiting.done.set_exception(trouble)
            return
        except Exception as error:  # any fault refuses its batch, never the others
            if len(group) == 1:
                log.exception("a batch could not be stored")
                group[0].done.set_exception(error)
            else:  # one of them is the cause: retry one by one
                for waiting in group:
                    self._store([waiting])
            return
        self.trouble = None
        self.counters.commits += 1
        self.counters.commit_seconds += time.perf_counter() - started
        for waiting, answer in zip(group, accepted, strict=True):
            if isinstance(answer, BadBatch):
                waiting.done.set_exception(answer)
            else:
                self.counters.batches += 1
                self.counters.values += waiting.batch.values
                waiting.done.set_result(answer)
        self._announce()

    def _settle(self, done: Future[Any], work: Callable[[Connection, IngestState], Any]) -> None:
        try:
            with self._transaction() as connection:
                result = work(connection, self._state)
                self._state.write(connection)
        except StorageTrouble as trouble:
            done.set_exception(trouble)
        except Exception as error:  # handed to whoever waits for the change
            done.set_exception(error)
            if not isinstance(error, LookupError | ValueError):
                log.exception("a change could not be made")
        else:
            done.set_result(result)
            self._announce()

    def _announce(self) -> None:
        stored, rows, full = self._state.take_news()
        if self._listener is not None and (stored or rows):
            try:
                self._listener(stored, rows)
            except Exception:  # a listener's fault must not end the writer
                log.exception("the live listener failed")
        if self._compact is not None:
            for stream, level in full:
                self._compact(stream, level)

    # -- the connection

    def _fold_log(self, connection: Connection) -> None:
        """Checkpoint at the end, so that a copy of the SQLite file alone is complete."""
        if self._database.kind == "sqlite":
            with contextlib.suppress(sa.exc.DBAPIError):
                connection.rollback()
                driver: Any = connection.connection.driver_connection
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _load(self) -> None:
        assert self._connection is not None
        self._state.load(self._connection)
        self._connection.rollback()

    def _transaction(self) -> _Transaction:
        return _Transaction(self)

    def _connected(self) -> Connection:
        if self._database.read_only is not None:
            raise StorageTrouble(self._database.read_only)
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self.leads = False
            self._connection = self._database.writer()
            self._load()
        return self._connection


class _Transaction:
    """Commit, or roll back and drop the state; turns errors of the storage into StorageTrouble."""

    __slots__ = ("_connection", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __enter__(self) -> Connection:
        try:
            self._connection = self._writer._connected()
            self._connection.begin()
            self._writer._state.begin_transaction()
        except Exception as error:  # sorted into storage trouble and faults by _failed
            raise self._failed(error) from error
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            try:
                self._connection.commit()
            except Exception as failed:  # sorted into storage trouble and faults by _failed
                self._undo()
                raise self._failed(failed) from failed
            return
        self._undo()
        if isinstance(error, Exception) and storage_trouble(error) is not None:
            raise self._failed(error) from error

    def _undo(self) -> None:
        try:
            self._connection.rollback()
        except sa.exc.DBAPIError:
            self._connection.close()
        self._writer._state.forget()

    def _failed(self, error: Exception) -> Exception:
        trouble = storage_trouble(error)
        if trouble is None:
            return error
        self._writer.counters.failed_commits += 1
        self._writer._failed_at = time.monotonic()
        if self._writer.trouble != trouble:
            log.warning("nothing can be stored: %s", trouble)
        self._writer.trouble = trouble
        return StorageTrouble(trouble)
