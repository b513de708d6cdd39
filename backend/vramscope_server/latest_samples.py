"""The newest sample of each device of the running runs, in memory, for ``/metrics``.

The writer publishes after each commit. After a restart of the server values are missing until an agent sends again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.answers.runs import RunRow
from vramscope_server.store.columns import Chunk, CorruptChunk
from vramscope_server.store.ingest_state import BatchNews
from vramscope_server.store.series_reader import newest_chunks

COLUMNS: Final = ("allocated_bytes", "reserved_bytes", "device_used_bytes", "gpu_utilization_percent")
"""Columns that are kept."""
FRESH_NS: Final = 30_000_000_000
"""A value counts until the device's newest sample is this much younger: NVML is read less often, and may cease to answer."""
MOST_RANKS: Final = 20_000
"""Maximum number of ranks; above it the one that was silent for longest is dropped."""

_CHUNKS: Final = 5
"""Newest chunks of a device that are read: one may have no value of NVML."""

_Place = tuple[str, int]
_Values = dict[str, tuple[int, int]]
"""Time by the sender's clock, and value, by column."""


class NewestValues(Protocol):
    """Newest values by rank."""

    def of_rank(self, run_id: str, rank: int, since_ns: int) -> dict[int, dict[str, int]]:
        """Newest known values by device and column, of the samples since the rank's session began (by its own clock)."""


class LatestSamples:
    """Thread-safe: the writer publishes, requests read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranks: dict[_Place, dict[int, _Values]] = {}
        """Values by device; the rank that was changed last is at the end."""

    def publish(self, stored: Sequence[BatchNews], runs: Sequence[RunRow]) -> None:
        """Keep the newest values of what the writer has committed. Drop runs that no longer run."""
        with self._lock:
            for batch in stored:
                blocks = [block for block in batch.blocks if block.stream == "samples"]
                if blocks:
                    place = (batch.run_id, batch.rank)
                    devices = self._ranks.pop(place, {})
                    self._ranks[place] = devices
                    for block in blocks:
                        _take(devices.setdefault(block.device, {}), block.columns)
            ended = {row["run_id"] for row in runs if row["state"] != "running"}
            if ended:
                self._ranks = {place: devices for place, devices in self._ranks.items() if place[0] not in ended}
            while len(self._ranks) > MOST_RANKS:
                del self._ranks[next(iter(self._ranks))]

    def of_rank(self, run_id: str, rank: int, since_ns: int) -> dict[int, dict[str, int]]:
        """Newest known values by device and column, of the samples since the rank's session began (by its own clock)."""
        with self._lock:
            devices = {device: dict(values) for device, values in self._ranks.get((run_id, rank), {}).items()}
        return _fresh(devices, since_ns)


class StoredSamples:
    """The same from the database, where several server processes store samples: a run is read once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runs: dict[str, dict[int, dict[int, _Values]]] = {}

    def of_rank(self, run_id: str, rank: int, since_ns: int) -> dict[int, dict[str, int]]:
        """Newest known values by device and column, of the samples since the rank's session began (by its own clock)."""
        if run_id not in self._runs:
            self._runs[run_id] = self._read(run_id)
        return _fresh(self._runs[run_id].get(rank, {}), since_ns)

    def _read(self, run_id: str) -> dict[int, dict[int, _Values]]:
        ranks: dict[int, dict[int, _Values]] = {}
        for rank, device, data in newest_chunks(self._connection, run_id, "samples", _CHUNKS):
            with contextlib.suppress(CorruptChunk):
                chunk = Chunk(data)
                columns = {name: chunk.column(name) for name in ("time_ns", *COLUMNS)}
                _take(ranks.setdefault(rank, {}).setdefault(device, {}), columns)
        return ranks


def _fresh(devices: Mapping[int, _Values], since_ns: int) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for device, values in devices.items():
        oldest = max(since_ns, max((time_ns for time_ns, _ in values.values()), default=0) - FRESH_NS)
        found[device] = {name: value for name, (time_ns, value) in values.items() if time_ns >= oldest}
    return found


def _take(values: _Values, columns: Mapping[str, IntArray]) -> None:
    times = columns["time_ns"]
    for name in COLUMNS:
        column = columns.get(name)
        if column is None or not (known := (column != series.UNKNOWN).nonzero()[0]).size:
            continue
        at = int(known[times[known].argmax()])
        if name not in values or int(times[at]) >= values[name][0]:
            values[name] = (int(times[at]), int(column[at]))
