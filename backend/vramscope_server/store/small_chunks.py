"""Counts the small chunks of each running run's streams, to know when there are enough to merge (``compaction.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.tables import FULL_LEVEL, FULL_ROWS, chunks, runs

MERGE_COUNT: Final = 16
"""Number of small chunks of one level that are merged into one of the next."""

Stream = tuple[int, int, int, str]
"""Run key, rank, device, stream."""


class SmallChunks:
    """Number of small chunks of each stream, and of their rows, by level."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Stream, int], list[int]] = {}

    def load(self, connection: Connection) -> None:
        """Count the chunks of running runs in the database."""
        self._counts.clear()
        stream = (chunks.c.run_key, chunks.c.rank, chunks.c.device, chunks.c.stream, chunks.c.level)
        counted = sa.select(*stream, sa.func.count(), sa.func.sum(chunks.c.rows)).join(
            runs, runs.c.key == chunks.c.run_key
        )
        counted = counted.where(runs.c.state == "running", chunks.c.level < FULL_LEVEL)
        for key, rank, device, name, level, count, rows in connection.execute(counted.group_by(*stream)):
            self._counts[((key, rank, device, name), level)] = [count, int(rows)]

    def add(self, stream: Stream, level: int, rows: int) -> Iterator[tuple[Stream, int]]:
        """Count a new chunk. Returns the stream and level if there are now enough to merge."""
        if level >= FULL_LEVEL:
            return
        count = self._counts.setdefault((stream, level), [0, 0])
        count[0] += 1
        count[1] += rows
        if count[0] >= MERGE_COUNT or (count[1] >= FULL_ROWS and count[0] > 1):
            del self._counts[stream, level]
            yield stream, level

    def forget(self, run_key: int) -> set[Stream]:
        """Forget a run that has ended or is deleted. Returns its streams that have small chunks."""
        gone = [entry for entry in self._counts if entry[0][0] == run_key]
        for entry in gone:
            del self._counts[entry]
        return {stream for stream, _ in gone}


def small_streams(connection: Connection, run_key: int) -> list[Stream]:
    """Streams of a run with small chunks in the database."""
    columns = (chunks.c.run_key, chunks.c.rank, chunks.c.device, chunks.c.stream)
    query = sa.select(*columns).where(chunks.c.run_key == run_key, chunks.c.level < FULL_LEVEL).distinct()
    return [(key, rank, device, name) for key, rank, device, name in connection.execute(query)]
