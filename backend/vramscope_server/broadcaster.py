"""What is new, told to everyone who watches: fed by the writer after each commit, heard through ``api/live.py``.

Rows of a stream are gathered and sent at most five times a second. A reader that is too slow loses the oldest events
and is told so (``gap``); nobody waits for anybody. The last events are kept for readers that come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from vramscope.protocol import messages, series
from vramscope_server.store.ingest_state import Stored
from vramscope_server.store.scalars import SCALARS, numbers
from vramscope_server.store.validation import ReadyBlock

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "samples": (
        "step", "phase", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes",
        "unusable_bytes", "private_pools_bytes", "private_requested_bytes", "private_active_bytes", "private_inactive_split_bytes",
        "device_used_bytes", "process_device_bytes", "others_device_bytes", "gpu_utilization_percent", "temperature_celsius",
        "power_milliwatts", "process_rss_bytes", "host_used_bytes", "alloc_retries", "ooms",
    ),
    "steps": (
        "step", "duration_ns", "peak_allocated_bytes", "peak_reserved_bytes", "peak_phase", "end_allocated_bytes",
        "end_reserved_bytes", "after_step_bytes", "graphs_alive", "foreign_reset",
        *(f"peak_{category}_bytes" for category in series.CATEGORIES),
        *(f"end_{category}_bytes" for category in series.CATEGORIES),
        *(f"{phase}_ns" for phase in series.PHASES),
        *(f"{phase}_peak_allocated_bytes" for phase in series.PHASES),
    ),
    SCALARS: ("step", *series.LOSSES),
}  # fmt: skip
"""The columns that pages draw, besides the time; a test compares them with what figures/registry.py lists."""

EVERY_SECONDS: Final = 0.2
MAX_ROWS: Final = 2000
"""More rows at once are history that was delivered late: readers fetch their window again."""
RING_BYTES: Final = 8 * 1024 * 1024
QUEUE_EVENTS: Final = 500
IDLE_SECONDS: Final = 60.0
"""So long after the last reader left, nothing is encoded any more."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, encoded once for all. ``run`` is None for events that everybody gets."""

    id: int
    kind: str
    run: str | None
    data: bytes

    def wanted(self, runs: frozenset[str]) -> bool:
        """Whether a reader of these runs gets it."""
        return self.run is None or self.run in runs


@dataclass(eq=False)
class Subscription:
    """One reader: a bounded queue that drops the oldest."""

    runs: frozenset[str]
    _events: deque[Event] = field(default_factory=deque)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _missed: bool = False
    closed: bool = False

    def push(self, event: Event) -> None:
        """Hand an event over; a full queue forgets its oldest."""
        if len(self._events) >= QUEUE_EVENTS:
            self._events.popleft()
            self._missed = True
        self._events.append(event)
        self._ready.set()

    def close(self) -> None:
        """No more will come."""
        self.closed = True
        self._ready.set()

    def miss(self) -> None:
        """Note that something was lost before this reader came back."""
        self._missed = True
        self._ready.set()

    async def take(self, timeout_seconds: float) -> tuple[bool, list[Event]]:
        """What came: (something was lost, events); waits for the first at most so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ready.wait(), timeout_seconds)
        self._ready.clear()
        missed, self._missed = self._missed, False
        events = list(self._events)
        self._events.clear()
        return missed, events


class Broadcaster:
    """One for a server. :meth:`publish` is for the writer's thread, all else for the event loop's."""

    def __init__(self) -> None:
        # Ids go on rising over a restart of the server, so that an old Last-Event-ID is seen to be too old.
        self._last = self._floor = time.time_ns() // 1_000_000
        self._ring: deque[Event] = deque()
        self._ring_bytes = 0
        self._readers: set[Subscription] = set()
        self._heard_at = -IDLE_SECONDS
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: dict[tuple[str, int, int, str, int], list[ReadyBlock]] = {}
        self._pending_looks: dict[tuple[str, int], messages.Scan] = {}
        self._pending_recordings: dict[str, dict[str, Any]] = {}
        self._pending_rows: dict[str, dict[str, Any]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Begin; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="vramscope-live")
        # A task that dies in silence would look like a training that stands still.
        self._task.add_done_callback(_say_why)

    def close(self) -> None:
        """Let all readers go; called on the event loop, before the server waits for its connections."""
        self._closing = True
        for reader in list(self._readers):
            reader.close()
        if self._task is not None:
            self._task.cancel()

    def close_soon(self) -> None:
        """As :meth:`close`, from a signal handler."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    @property
    def readers(self) -> int:
        """Open streams."""
        return len(self._readers)

    @property
    def last(self) -> int:
        """Id of the newest event."""
        return self._last

    def publish(self, stored: Sequence[Stored], rows: Sequence[dict[str, Any]]) -> None:
        """From the writer, after a commit."""
        if self._loop is not None and not self._closing:
            try:
                self._loop.call_soon_threadsafe(self._take, stored, rows)
            except RuntimeError:  # the loop has just been closed
                self._closing = True

    def subscribe(self, runs: frozenset[str], after: int | None) -> Subscription:
        """Listen from now on, or from the event after ``after`` as far as it is still known."""
        reader = Subscription(runs)
        self._heard_at = time.monotonic()
        if after is not None:
            events, gap = self.since(after, runs)
            if gap:
                reader.miss()
            for event in events:
                reader.push(event)
        self._readers.add(reader)
        if self._closing:
            reader.close()
        return reader

    def leave(self, reader: Subscription) -> None:
        """Listen no more."""
        self._readers.discard(reader)
        self._heard_at = time.monotonic()

    def since(self, after: int, runs: frozenset[str]) -> tuple[list[Event], bool]:
        """Events after an id, and whether some of them are no longer known."""
        self.heard()
        if after < self._floor or after > self._last:
            return [], True
        return [event for event in self._ring if event.id > after and event.wanted(runs)], False

    def heard(self) -> None:
        """Somebody listens, if only now and then."""
        self._heard_at = time.monotonic()

    # -- on the loop

    def _take(self, stored: Sequence[Stored], rows: Sequence[dict[str, Any]]) -> None:
        if not self._readers and time.monotonic() - self._heard_at > IDLE_SECONDS:
            self._last += 1
            self._floor = self._last
            self._ring.clear()
            self._ring_bytes = 0
            return
        for batch in stored:
            for block in batch.blocks:
                key = (batch.run_id, batch.rank, block.device, block.stream, batch.skew_ns)
                self._pending.setdefault(key, []).append(block)
            if batch.scan is not None:
                self._pending_looks[batch.run_id, batch.rank] = batch.scan
            for ident in batch.recordings:
                self._pending_recordings[ident] = {"run": batch.run_id, "rank": batch.rank, "recording": ident}
        for row in rows:
            self._pending_rows[row["run_id"]] = row
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pending, self._pending = self._pending, {}
            scans, self._pending_looks = self._pending_looks, {}
            recordings, self._pending_recordings = self._pending_recordings, {}
            rows, self._pending_rows = self._pending_rows, {}
            for row in rows.values():
                self._send("run", None, row)
            for (run, rank, device, stream, skew_ns), blocks in pending.items():
                if sum(block.columns["time_ns"].size for block in blocks) > MAX_ROWS:
                    self._send("gap", run, {"run": run})
                else:
                    self._send("rows", run, _rows(run, rank, device, stream, skew_ns, blocks))
            for (run, rank), scan in scans.items():
                told = {"run": run, "rank": rank, "step": scan.step, "leaks": len(scan.leaks)}
                self._send("scan", run, told)
            for whole in recordings.values():
                self._send("recording", whole["run"], whole)
            await asyncio.sleep(EVERY_SECONDS)

    def _send(self, kind: str, run: str | None, data: dict[str, Any]) -> None:
        self._last += 1
        event = Event(self._last, kind, run, msgspec.json.encode(data))
        self._ring.append(event)
        self._ring_bytes += len(event.data) + 200
        while self._ring_bytes > RING_BYTES:
            gone = self._ring.popleft()
            self._ring_bytes -= len(gone.data) + 200
            self._floor = gone.id
        for reader in self._readers:
            if event.wanted(reader.runs):
                reader.push(event)


def _rows(run: str, rank: int, device: int, stream: str, skew_ns: int, blocks: list[ReadyBlock]) -> dict[str, Any]:
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
            found, told = numbers(np.fromiter(values, np.int64))
            columns[name] = [
                value if known else None for value, known in zip(found.tolist(), told.tolist(), strict=True)
            ]
        else:
            columns[name] = [None if value == series.UNKNOWN else value for value in values]
    return {"run": run, "rank": rank, "device": device, "stream": stream, "columns": columns}


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "live events stopped", "exception": task.exception(), "task": task}
        )
