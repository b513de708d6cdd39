"""Merges a stream's many small chunks into few large ones, in a thread of its own.

A live agent sends a few rows five times a second, each stored as a small chunk. Sixteen of a level become one of the
next, and a chunk of 4096 rows is full and stays. A row is rewritten about three times, and a run of an hour is read from
about twenty chunks a stream, nine of them full. Chunks never change, so reading and packing happen here, on a reading
connection; only the exchange of the small chunks for the merged one needs the writer.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from vramscope.protocol import series
from vramscope_server.store import columns as codec
from vramscope_server.store.database import Database
from vramscope_server.store.small_chunks import Stream
from vramscope_server.store.tables import FULL_LEVEL, FULL_ROWS, chunks
from vramscope_server.store.writer import QueueFull, StorageTrouble, Writer, WriterClosed

log = logging.getLogger("vramscope_server.compaction")

EVERY_LEVEL: Final = -1
"""In place of a level: merge everything that is not full, because the run has ended."""
_MOST_CHUNKS: Final = 512
"""Maximum number of chunks of one merge; it bounds its memory."""


class Compactor:
    """Merges chunks. Pass :meth:`merge` to the writer as ``compact``. Start with :meth:`start`, end with :meth:`close`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: queue.Queue[tuple[Stream, int] | None] = queue.Queue(10_000)
        self._thread = threading.Thread(target=self._run, name="vramscope-compactor", daemon=True)
        self._writer: Writer | None = None
        self._closing = False

    def start(self, writer: Writer) -> None:
        """Start the thread; the writer must have been started."""
        self._writer = writer
        self._thread.start()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop after the current merge. The rest is merged when the stream grows again."""
        self._closing = True
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def merge(self, stream: Stream, level: int) -> None:
        """Schedule a merge of a stream's chunks of one level. Never blocks; dropped if far too many are scheduled."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((stream, level))

    @property
    def waiting(self) -> int:
        """Number of scheduled merges."""
        return self._queue.qsize()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._closing:
            stream, level = item
            try:
                while self._merge_once(stream, level) and not self._closing:
                    pass
            except (StorageTrouble, QueueFull, WriterClosed):
                pass  # the small chunks remain, and the writer reports the problem
            except Exception:  # small chunks remain readable; the thread must go on
                log.exception("the chunks of %s were not merged", stream)

    def _merge_once(self, stream: Stream, level: int) -> bool:
        """Merge up to 512 chunks. Returns whether there may be more."""
        key, rank, device, name = stream
        query = sa.select(chunks.c.key, chunks.c.level, chunks.c.rows, chunks.c.data).where(
            chunks.c.run_key == key,
            chunks.c.rank == rank,
            chunks.c.device == device,
            chunks.c.stream == name,
            chunks.c.level < FULL_LEVEL if level == EVERY_LEVEL else chunks.c.level == level,
        )
        with self._database.reader() as connection:
            found = connection.execute(query.order_by(chunks.c.first_time_ns).limit(_MOST_CHUNKS)).all()
        # A damaged chunk stays: readers leave it out and report it, and the others are merged around it.
        opened = [(row, columns) for row in found if (columns := _columns(row.data)) is not None]
        if len(opened) < 2:
            return False
        level_after = max(row.level for row, _ in opened) + 1
        merged = _merged([columns for _, columns in opened], level_after)
        if len(merged) >= len(opened):
            return False
        assert self._writer is not None
        gone = [int(row.key) for row, _ in opened]
        done: Future[bool] = self._writer.do(
            lambda connection, state: state.replace_chunks(connection, stream, gone, merged)
        )
        return done.result(60) and len(found) == _MOST_CHUNKS


def _columns(blob: bytes) -> codec.Columns | None:
    """All columns of a chunk; None if one of them cannot be read."""
    try:
        return codec.columns_of(codec.Chunk(blob))
    except codec.CorruptChunk as damage:
        log.warning("a damaged chunk was left as it is: %s", damage)
        return None


def _merged(opened: list[codec.Columns], level: int) -> list[dict[str, Any]]:
    columns = codec.concatenate(opened)
    time_ns = columns["time_ns"]
    if (np.diff(time_ns) < 0).any():
        order = np.argsort(time_ns, kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
    names = list(columns)
    table = np.stack(list(columns.values()))
    times = names.index("time_ns")
    merged = []
    for start in range(0, table.shape[1], FULL_ROWS):
        part = table[:, start : start + FULL_ROWS]
        rows = part.shape[1]
        steps = part[names.index("step")] if "step" in names else np.full(rows, series.UNKNOWN)
        merged.append(
            {
                "level": FULL_LEVEL if rows == FULL_ROWS else min(level, FULL_LEVEL - 1),
                "rows": rows,
                "first_time_ns": int(part[times].min()),
                "last_time_ns": int(part[times].max()),
                "first_step": int(steps.min()),
                "last_step": int(steps.max()),
                "data": codec.encode(names, part, thorough=rows >= FULL_ROWS // 8),
            }
        )
    return merged
