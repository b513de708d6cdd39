"""Recent events for pages that poll ``/live/delta``: new rows, scans, recordings and changed runs.

The writer publishes after each commit. Events are encoded when a page asks, at most five times a second, and the newest
are kept in a ring. A page that asks for older ones gets ``gap`` and fetches its window again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import msgspec
import numpy as np

from vramscope.protocol import messages, series
from vramscope_server.answers.runs import RunRow
from vramscope_server.store.ingest_state import BatchNews
from vramscope_server.store.project_scope import ALL_PROJECTS, ProjectScope
from vramscope_server.store.scalars import SCALARS, numbers
from vramscope_server.store.validation import ReadyBlock

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "samples": (
        "step", "phase", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes",
        "unusable_bytes", "private_pools_bytes", "private_requested_bytes", "private_active_bytes", "private_inactive_split_bytes",
        "device_used_bytes", "process_device_bytes", "others_device_bytes", *series.OTHER_PROCESSES, "gpu_utilization_percent",
        "temperature_celsius", "power_milliwatts", "process_rss_bytes", "host_used_bytes",
        "pinned_bytes", "process_anonymous_bytes", "child_processes_bytes", "shared_memory_bytes", "alloc_retries", "ooms",
    ),
    "steps": (
        "step", "first_step", "duration_ns", "peak_allocated_bytes", "peak_reserved_bytes", "peak_phase", "end_allocated_bytes",
        "end_reserved_bytes", "after_step_bytes", "graphs_alive", "foreign_reset",
        *(f"peak_{category}_bytes" for category in series.CATEGORIES),
        *(f"end_{category}_bytes" for category in series.CATEGORIES),
        *(f"{phase}_ns" for phase in series.PHASES),
        *(f"{phase}_peak_allocated_bytes" for phase in series.PHASES),
    ),
    SCALARS: ("step", *series.LOSSES),
}  # fmt: skip
"""Columns that pages draw, besides the time. A test compares them with figures/registry.py."""

EVERY_SECONDS: Final = 0.2
"""Minimum time between two encodings of new rows."""
MAX_ROWS: Final = 2000
"""More rows at once are history that arrived late. They become one ``gap`` event."""
RING_BYTES: Final = 8 * 1024 * 1024
KEPT_SECONDS: Final = 60.0
"""Age from which events are dropped. A page that was away for longer reads everything again."""
IDLE_SECONDS: Final = 60.0
"""Events are dropped if no page has asked for so long."""


@dataclass(frozen=True, slots=True)
class Event:
    """One encoded event. ``run`` is None for events that every page of the project gets."""

    id: int
    kind: str
    project: str
    run: str | None
    data: bytes


@dataclass(slots=True)
class _Rows:
    """New rows of one stream of one device, not encoded yet."""

    blocks: list[ReadyBlock]
    count: int = 0

    def add(self, block: ReadyBlock) -> None:
        """Keep a block, unless there are too many rows to send."""
        self.count += block.columns["time_ns"].size
        if self.count > MAX_ROWS:
            self.blocks.clear()
        else:
            self.blocks.append(block)


class LiveEvents:
    """Events of one server. Thread-safe: the writer publishes, requests read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Ids keep rising over a restart of the server, so that an id of before is recognised as too old.
        self._last = self._oldest = time.time_ns() // 1_000_000
        self._ring: deque[Event] = deque()
        self._encoded: deque[tuple[float, int]] = deque()
        """Time, and the id of the newest event, of each encoding whose events are kept."""
        self._ring_bytes = 0
        self._asked_at = self._encoded_at = -IDLE_SECONDS
        self._clear_pending()

    @property
    def last(self) -> int:
        """Id of the newest event."""
        return self._last

    def publish(self, stored: Sequence[BatchNews], runs: Sequence[RunRow]) -> None:
        """Add what the writer has committed: rows, scans and recordings; and the changed rows of the list of runs."""
        with self._lock:
            if time.monotonic() - self._asked_at > IDLE_SECONDS:
                self._drop_all()
            else:
                self._add_pending(stored, runs)

    def _add_pending(self, stored: Sequence[BatchNews], runs: Sequence[RunRow]) -> None:
        for batch in stored:
            for block in batch.blocks:
                key = (batch.project, batch.run_id, batch.rank, block.device, block.stream, batch.skew_ns)
                self._rows.setdefault(key, _Rows([])).add(block)
            if batch.scan is not None:
                self._scans[batch.project, batch.run_id, batch.rank] = batch.scan
            for ident in batch.recordings:
                new: _NewRecording = {"run": batch.run_id, "rank": batch.rank, "recording": ident}
                self._recordings[ident] = (batch.project, new)
        for run in runs:
            self._runs[run["run_id"]] = run

    def start(self) -> int:
        """Id of the newest event, for a page that starts to poll."""
        with self._lock:
            self._asked_at = time.monotonic()
            self._encode_pending()
            return self._last

    def since(
        self, after: int, runs: frozenset[str], scope: ProjectScope = ALL_PROJECTS
    ) -> tuple[list[Event], int, bool]:
        """Events of a scope after an id, the newest id, and whether events in between are lost."""
        with self._lock:
            self._asked_at = time.monotonic()
            self._encode_pending()
            if after < self._oldest or after > self._last:
                return [], self._last, True
            found = [event for event in self._ring if event.id > after and (event.run is None or event.run in runs)]
            return [event for event in found if scope.has(event.project)], self._last, False

    def _clear_pending(self) -> None:
        self._rows: dict[tuple[str, str, int, int, str, int], _Rows] = {}
        self._scans: dict[tuple[str, str, int], messages.Scan] = {}
        self._recordings: dict[str, tuple[str, _NewRecording]] = {}
        self._runs: dict[str, RunRow] = {}

    def _drop_all(self) -> None:
        self._last += 1
        self._oldest = self._last
        self._ring.clear()
        self._encoded.clear()
        self._ring_bytes = 0
        self._clear_pending()

    def _encode_pending(self) -> None:
        now = time.monotonic()
        if now - self._encoded_at < EVERY_SECONDS:
            return
        self._encoded_at = now
        for row in self._runs.values():
            self._add("run", row["project"], None, row)
        for (project, run, rank, device, stream, skew_ns), rows in self._rows.items():
            if rows.count > MAX_ROWS:
                self._add("gap", project, run, {"run": run})
            else:
                self._add("rows", project, run, _rows(run, rank, device, stream, skew_ns, rows.blocks))
        for (project, run, rank), scan in self._scans.items():
            self._add("scan", project, run, {"run": run, "rank": rank, "step": scan.step, "leaks": len(scan.leaks)})
        for project, recording in self._recordings.values():
            self._add("recording", project, recording["run"], recording)
        self._clear_pending()
        self._encoded.append((now, self._last))
        while now - self._encoded[0][0] > KEPT_SECONDS:
            self._drop_until(self._encoded.popleft()[1])

    def _add(self, kind: str, project: str, run: str | None, data: Mapping[str, Any]) -> None:
        self._last += 1
        event = Event(self._last, kind, project, run, msgspec.json.encode(data))
        self._ring.append(event)
        self._ring_bytes += len(event.data) + 200
        while self._ring_bytes > RING_BYTES:
            self._drop_until(self._ring[0].id)

    def _drop_until(self, last: int) -> None:
        """Drop the events up to this id."""
        while self._ring and self._ring[0].id <= last:
            dropped = self._ring.popleft()
            self._ring_bytes -= len(dropped.data) + 200
            self._oldest = dropped.id


class _NewRecording(TypedDict):
    run: str
    rank: int
    recording: str


class _NewRows(TypedDict):
    run: str
    rank: int
    device: int
    stream: str
    columns: dict[str, list[Any]]


def _rows(run: str, rank: int, device: int, stream: str, skew_ns: int, blocks: list[ReadyBlock]) -> _NewRows:
    columns: dict[str, list[Any]] = {
        "time_seconds": [(t - skew_ns) / 1e9 for block in blocks for t in block.columns["time_ns"].tolist()]
    }
    for name in COLUMNS[stream]:
        parts = [block.columns.get(name) for block in blocks]
        if all(part is None for part in parts):
            continue
        sizes = [block.columns["time_ns"].size for block in blocks]
        values: itertools.chain[int] = itertools.chain.from_iterable(
            np.full(size, series.UNKNOWN).tolist() if part is None else part.tolist()
            for part, size in zip(parts, sizes, strict=True)
        )
        if stream == SCALARS and name != "step":
            values_, known = numbers(np.fromiter(values, np.int64))
            columns[name] = [
                value if is_known else None for value, is_known in zip(values_.tolist(), known.tolist(), strict=True)
            ]
        else:
            columns[name] = [None if value == series.UNKNOWN else value for value in values]
    return {"run": run, "rank": rank, "device": device, "stream": stream, "columns": columns}
