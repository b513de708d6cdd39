"""Format of a profile: results of torch.profiler for some steps, summed up as tables.

A profile is an artifact (``messages.Piece``): one :class:`Profile`, as MessagePack, compressed by zlib. Columns are
little-endian int64 arrays, as on the wire; -1 means unknown. The agent's package ``profiler`` writes it, the server's
``analysis/profile`` reads it.

This module needs msgspec alone, because both sides import it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from vramscope.protocol.artifact import BadArtifact, unpacked
from vramscope.protocol.messages import Text, Whole
from vramscope.protocol.series import CPU

FORMAT: Final = 1
MAX_BYTES: Final = 64 << 20
"""Maximum size of an uncompressed profile."""
MAX_ROWS: Final = 5_000
"""Maximum number of rows of one table; the rest is summed in one row, :data:`OTHER`."""

TABLES: Final = ("operations", "modules", "lines")

PYTHON: Final = "(Python, outside of operations)"
"""Row of the time between operations, and of memory that Python code freed outside of them."""
OUTSIDE: Final = "(outside of modules)"
"""Row of work outside of any module's forward: the loss, the optimizer and everything else."""
NO_LINE: Final = "(no line of yours)"
"""Row of work without a Python stack that leads to a line outside of PyTorch."""
NOT_ATTRIBUTED: Final = "(not attributed)"
"""Row of memory that the allocator counted and the profiler did not see."""
OTHER: Final = "(all others)"
SPECIAL: Final = (PYTHON, OUTSIDE, NO_LINE, NOT_ATTRIBUTED, OTHER)

QUANTITIES: Final = {
    "calls": "number of calls",
    "cpu_ns": "CPU time, callees included",
    "self_cpu_ns": "CPU time without callees",
    "device_ns": "time of its kernels, callees included",
    "self_device_ns": "time of its kernels without callees",
    "allocated_bytes": "allocated in the window, callees included",
    "self_allocated_bytes": "allocated in the window without callees",
    "freed_bytes": "freed in the window while it ran, whoever allocated it, callees included",
    "self_freed_bytes": "freed in the window while it ran, without callees",
    "peak_bytes": "its allocations alive at the window's peak, callees included",
    "self_peak_bytes": "its allocations alive at the window's peak, without callees",
}
"""Columns of every table. Those of ``self_`` add up to the window's totals: each byte and nanosecond is in one row."""

KEYS: Final = {
    "operations": {
        "name": "position in Profile.words",
        "phase": "position in series.PHASES",
        "shapes": "position in Profile.words",
    },
    "modules": {"name": "position in Profile.words", "kind": "position in Profile.words: the class"},
    "lines": {
        "name": "position in Profile.words: the function",
        "file": "position in Profile.words",
        "line": "from 1",
        "last_line": "larger than ``line`` if the profiler only reports that it is between the two",
    },
}
"""Columns that identify a row of each table."""

MAX_CHANGES: Final = 100_000
"""Maximum number of changes in one history (4 MB uncompressed). With more, there is no history."""
HISTORY: Final = {
    "change_bytes": "size of an allocation; negative when it is freed",
    "total_bytes": "allocated afterwards, from the allocator's own counter; -1: not reported, as for memory that Python frees",
    "operations": "row of that table that the block counts for until it is freed; -1: allocated before the window",
    "modules": "the same for that table; -1 too if there are no modules",
    "lines": "the same for that table; -1 too if there are no lines",
}
"""Columns of the window's memory events in order. From them the tables can be computed for every event index."""

Columns = dict[str, bytes]
"""Name -> rows * 8 bytes."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the profile for the training, in seconds."""

    opening: float
    closing: float
    packing: float
    """CPU time of the agent's own thread."""
    step_before: float | None
    """Median step before the window."""
    step_within: float | None
    """Median step in the window."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps, summed up by operation, by module and by source line."""

    format: int = FORMAT
    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    """Device whose memory the tables describe."""
    device_name: Text
    torch: Text
    cuda: Text | None
    reason: Text
    """Why the agent recorded: ``after warm-up``, ``asked for`` ..."""
    first_step: int
    """Number of the first step, from 1 as in series.STEPS."""
    last_step: int
    steps: Whole
    """Number of complete steps in the window."""
    device_time: bool
    """False: no kernel was seen (no CUPTI, or a CPU), and the times of the device are unknown."""
    stacks: bool
    """False: recorded without Python stacks, so that there are no lines."""
    modules_known: bool
    """False: module calls could not be recorded (compiled), so that there are no modules."""
    span_ns: Whole
    """Length of the window."""
    phases: dict[Text, Whole] = {}
    """Nanoseconds of the window in each of series.PHASES; empty if they are not known."""
    device_busy_ns: Whole | None
    """Time in which at least one kernel ran."""
    cost: Cost
    allocated_bytes: Whole | None
    """Allocated in the window, from the allocator's own counters; None on the CPU, which has none."""
    freed_bytes: Whole | None
    start_bytes: Whole | None
    """Allocated at the begin of the window."""
    peak_bytes: Whole | None
    """Highest allocated in the window."""
    before_bytes: Whole | None
    """Part of the peak that was allocated before the window: parameters, optimizer state ..."""
    unattributed_peak_bytes: Whole | None
    """Part of the peak that is in no row and was not allocated before."""
    peak_step: int
    peak_phase: int
    """Position in series.PHASES; -1: unknown."""
    peak_ns: int
    """Time after the window's begin."""
    retries: Whole | None
    """Allocations that succeeded only after the cache was emptied."""
    device_allocations: Whole | None
    """Calls of cudaMalloc, or mappings, in the window."""
    device_frees: Whole | None
    operations: Columns
    modules: Columns
    lines: Columns
    history: Columns = {}
    """Empty if there were more than MAX_CHANGES, or the allocator has no counters."""
    words: list[Text]
    """Names of operations, modules, classes, functions and files."""
    notes: list[Text] = []


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Profile).decode


class BadProfile(ValueError):
    """The bytes are not a profile, or have an unknown format. The text says why."""


def pack(profile: Profile) -> bytes:
    """Compress a profile for an artifact."""
    return zlib.compress(_encode(profile), 6)


def unpack(data: bytes) -> Profile:
    """Read a profile from an artifact. Raises BadProfile, with a field where one is wrong; limited by MAX_BYTES."""
    try:
        profile = unpacked(data, _decode, MAX_BYTES)
    except BadArtifact as bad:
        raise BadProfile(str(bad)) from None
    if profile.format != FORMAT:
        raise BadProfile(f"a profile of format {profile.format}; supported: {FORMAT}")
    for table in TABLES:
        _check(table, getattr(profile, table), (*KEYS[table], *QUANTITIES))
    _check("history", profile.history, HISTORY)
    for table in TABLES if profile.history else ():
        _check_rows(table, getattr(profile, table), profile.history[table])
    return profile


def _check(table: str, columns: Columns, known: Iterable[str]) -> None:
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or any(length % 8 for length in lengths):
        raise BadProfile(f"{table}: columns of different lengths, {sorted(lengths)} bytes")
    missing = [key for key in known if key not in columns] if columns else []
    if missing:
        raise BadProfile(f"{table}: no column {missing[0]!r}")


def _check_rows(table: str, columns: Columns, referred: bytes) -> None:
    """Refuse a history that refers to rows which its table has not. Of a table without rows none are read."""
    rows = len(next(iter(columns.values()), b"")) // 8
    highest = max(memoryview(referred).cast("q"), default=-1)
    if rows and highest >= rows:
        raise BadProfile(f"history: row {highest} of {table}, which has {rows}")
