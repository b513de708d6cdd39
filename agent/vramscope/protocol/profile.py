"""The contract of a profile: what torch.profiler saw in some steps, summed up as tables.

A profile is an artifact (``messages.Piece``): one :class:`Profile`, as MessagePack, compressed by zlib. Columns are
little-endian int64 arrays, as on the wire; -1 says unknown. The agent's ``profile`` room writes it, the server's
``analysis/profile`` reads it.

Stands on msgspec alone, because both sides import it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from vramscope.protocol.messages import Text, Whole
from vramscope.protocol.series import CPU

FORMAT: Final = 1
MAX_BYTES: Final = 64 << 20
"""of one profile when it is not compressed"""
MAX_ROWS: Final = 5_000
"""of one table; what is over goes into one row, :data:`OTHER`"""

TABLES: Final = ("operations", "modules", "lines")

PYTHON: Final = "(Python, outside of operations)"
"""row: time between operations, and what Python code let go by itself"""
OUTSIDE: Final = "(outside of modules)"
"""row: the loss, the optimizer, and all else that no module's forward does"""
NO_LINE: Final = "(no line of yours)"
"""row: work without a Python stack that leads to a line outside of PyTorch"""
NOT_ATTRIBUTED: Final = "(not attributed)"
"""row: what the allocator counted and the profiler was not told of"""
OTHER: Final = "(all others)"
SPECIAL: Final = (PYTHON, OUTSIDE, NO_LINE, NOT_ATTRIBUTED, OTHER)

QUANTITIES: Final = {
    "calls": "how often",
    "cpu_ns": "time on the CPU, what it called included",
    "self_cpu_ns": "time on the CPU, in itself",
    "device_ns": "time of the kernels that it launched, what it called included",
    "self_device_ns": "time of the kernels that it launched itself",
    "allocated_bytes": "allocated in the window, what it called included",
    "self_allocated_bytes": "allocated in the window, by itself",
    "freed_bytes": "let go in the window while it ran, whoever allocated it, what it called included",
    "self_freed_bytes": "the same, by itself",
    "peak_bytes": "of what it allocated, alive at the window's peak, what it called included",
    "self_peak_bytes": "of what it allocated itself, alive at the window's peak",
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
        "last_line": "larger than ``line`` where the profiler tells no more than that it lies between the two",
    },
}
"""What tells a row of each table from the others."""

MAX_CHANGES: Final = 100_000
"""of one history; of more there is none: 4 MB before it is compressed"""
HISTORY: Final = {
    "change_bytes": "of an allocation its size; of its end, minus that",
    "total_bytes": "allocated afterwards, by the allocator's own count; -1: not told, as of what Python lets go by itself",
    "operations": "row of that table which the block is held for, from its allocation to its end; -1: allocated before the window",
    "modules": "the same of that table; -1 too where there are no modules",
    "lines": "the same of that table; -1 too where there are no lines",
}
"""Columns of the memory events of a window in their order: so the tables close at every moment."""

Columns = dict[str, bytes]
"""name -> rows * 8 bytes"""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the window cost the training, in seconds."""

    opening: float
    closing: float
    packing: float
    """CPU time of the agent's own thread"""
    step_before: float | None
    """median step before the window"""
    step_within: float | None
    """median step in the window"""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps, summed up by operation, by module and by source line."""

    format: int = FORMAT
    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    """whose memory the tables tell"""
    device_name: Text
    torch: Text
    cuda: Text | None
    reason: Text
    """what made the agent record: ``after warm-up``, ``asked for`` ..."""
    first_step: int
    """numbers of the steps, from 1 as in series.STEPS"""
    last_step: int
    steps: Whole
    """that the window holds in full"""
    device_time: bool
    """False: no kernel was seen (no CUPTI, or a CPU), and the times of the device are unknown"""
    stacks: bool
    """False: recorded without Python stacks, so that there are no lines"""
    modules_known: bool
    """False: forward hooks were not possible (compiled), so that there are no modules"""
    span_ns: Whole
    """length of the window"""
    phases: dict[Text, Whole] = {}
    """of it, ns in each of series.PHASES, as the clock told them; empty where it told none"""
    device_busy_ns: Whole | None
    """in which at least one kernel ran"""
    cost: Cost
    allocated_bytes: Whole | None
    """in the window, by the allocator's own counters; None: it has none (CPU)"""
    freed_bytes: Whole | None
    start_bytes: Whole | None
    """allocated when the window began"""
    peak_bytes: Whole | None
    """highest allocated within"""
    before_bytes: Whole | None
    """of the peak, allocated before the window: parameters, optimizer state ..."""
    unattributed_peak_bytes: Whole | None
    """of the peak, what is in no row and was not there before"""
    peak_step: int
    peak_phase: int
    """position in series.PHASES; -1: unknown"""
    peak_ns: int
    """after the window's beginning"""
    retries: Whole | None
    """allocations that succeeded only after the cache was emptied"""
    device_allocations: Whole | None
    """cudaMalloc calls, or mappings, in the window"""
    device_frees: Whole | None
    operations: Columns
    modules: Columns
    lines: Columns
    history: Columns = {}
    """empty where there were more than MAX_CHANGES, or the allocator tells no counters"""
    words: list[Text]
    """names of operations, modules, classes, functions and files"""
    notes: list[Text] = []


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Profile).decode


class BadProfile(ValueError):
    """The bytes are no profile, or no profile of a format that is known here. Says what is the matter."""


def pack(profile: Profile) -> bytes:
    """The artifact's bytes."""
    return zlib.compress(_encode(profile), 6)


def unpack(data: bytes) -> Profile:
    """The profile in an artifact's bytes. Raises BadProfile, with a field where one is wrong; bounded by MAX_BYTES."""
    try:
        opener = zlib.decompressobj()
        raw = opener.decompress(data, MAX_BYTES)
        if opener.unconsumed_tail:
            raise BadProfile(f"a profile of more than {MAX_BYTES} bytes")
        if not opener.eof:
            raise BadProfile("the profile is cut off")
        profile = _decode(raw)
    except zlib.error as fault:
        raise BadProfile(f"not compressed as a profile is: {fault}") from None
    except msgspec.MsgspecError as fault:
        raise BadProfile(str(fault)) from None
    if profile.format != FORMAT:
        raise BadProfile(f"a profile of format {profile.format}; known here: {FORMAT}")
    for table in TABLES:
        _check(table, getattr(profile, table), (*KEYS[table], *QUANTITIES))
    _check("history", profile.history, HISTORY)
    return profile


def _check(table: str, columns: Columns, known: Iterable[str]) -> None:
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or any(length % 8 for length in lengths):
        raise BadProfile(f"{table}: columns of different lengths, {sorted(lengths)} bytes")
    missing = [key for key in known if key not in columns] if columns else []
    if missing:
        raise BadProfile(f"{table}: no column {missing[0]!r}")
