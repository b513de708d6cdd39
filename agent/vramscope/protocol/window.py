"""Format of a recorded window: the CUDA allocator's events in some steps, from which they can be replayed.

A window is an artifact (``messages.Piece``): one :class:`Window`, as MessagePack, compressed by zlib. Columns are
little-endian int64 arrays, as on the wire; -1 means unknown. The agent's package ``recording`` writes it. The server's
``analysis/trace`` reads it, and makes the same from a snapshot file of PyTorch.

This module needs msgspec alone, because both sides import it.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final

import msgspec

from vramscope.protocol.artifact import BadArtifact, unpacked
from vramscope.protocol.messages import Text, Whole
from vramscope.protocol.series import CPU

FORMAT: Final = 1
MAX_BYTES: Final = 256 << 20
"""Maximum size of an uncompressed window: some 3 million events. The agent records up to 600,000."""

ACTIONS: Final = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
"""Action codes are positions in this tuple; the words are PyTorch's."""

STATES: Final = ("inactive", "active_allocated", "active_pending_free")
"""Codes of a block's state; the words are PyTorch's (2.x also uses ``active_awaiting_free`` for the last)."""

EVENTS: Final = {
    "action": "position in ACTIONS",
    "address": "address of the block or segment; for an oom: free bytes of the device",
    "size_bytes": "requested bytes (alloc, free_*), or size of the segment's part; for an oom: the rounded request",
    "stream": "the CUDA stream's handle",
    "time_ns": "wall clock, since 1970; in whole microseconds",
    "pool": "position in Window.pools",
    "stack": "position in Window.stacks",
    "step": "number of the step, from 1",
    "phase": "position in series.PHASES",
    "module": "position in Window.modules",
}
"""Columns of the events, in the allocator's own order."""

SEGMENTS: Final = {
    "address": "start address",
    "size_bytes": "size of the mapped range",
    "stream": "the CUDA stream's handle",
    "large": "1: large pool, 0: small pool",
    "expandable": "1: part of an expandable segment, 0: made by cudaMalloc",
    "pool": "position in Window.pools",
}
BLOCKS: Final = {
    "segment": "position among the segments",
    "address": "start address",
    "size_bytes": "size in the allocator, rounded",
    "requested_bytes": "requested size; outdated for an inactive block",
    "state": "position in STATES",
    "stack": "position in Window.stacks",
}
OWNER_CATEGORIES: Final = ("parameters", "gradients", "optimizer", "buffers", "input", "copies", "workspaces")
"""Categories of owners: codes are positions in this tuple."""
MOST_CATEGORIES: Final = 64
"""Codes from here on are refused. Codes in between are categories of newer agents."""
OWNERS: Final = {
    "event": "number of events before it was seen",
    "address": "address of the tensor's block",
    "category": "position in OWNER_CATEGORIES",
    "name": "position in Window.owner_names",
}
"""Columns of named tensors at the begin of a step, before its optimizer runs, and at its end."""
HELD: Final = {
    "event": "number of events before it was seen",
    "address": "address of the tensor's block",
    "holding": "position in Window.holdings; -1: saved for the backward that begins there",
}
"""Columns of memory that leaks retain and their fixes would free, and of memory that each backward needs."""
FRAMES: Final = {"file": "position in Window.words", "line": "from 1", "function": "position in Window.words"}

Columns = dict[str, bytes]
"""Name -> rows * 8 bytes."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """State of the allocator on one device at one time: a snapshot without its traces."""

    segments: Columns
    blocks: Columns
    """Blocks in the order of their addresses."""
    counters: dict[str, int] = {}
    """torch.cuda.memory_stats() at that time, flattened (``reserved_bytes.all.peak``)."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One leak (identified by four fields of ``messages.Leak``), as the scans within a window saw it."""

    kind: Text
    name: Text
    file: Text | None
    line: int | None
    counted_bytes: list[int]
    """Bytes that the fix frees beside the addresses in Window.held, estimated from similar tensors. One per scan; -1: not
    found yet."""


Settings = dict[str, int | float | bool | str | None]
"""Allocator settings in force, with the names of PYTORCH_CUDA_ALLOC_CONF."""


class SettingsBefore(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the first part of a window, if they were changed once within it."""

    until_event: Annotated[int, msgspec.Meta(ge=0)]
    """Number of events before the change."""
    settings: Text
    settings_in_force: Settings


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one device's allocator between the layouts ``start`` and ``end``."""

    format: int = FORMAT
    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    device_name: Text
    device_total_bytes: Whole | None
    device_free_bytes: Whole | None
    """Free memory at the start, as cudaMemGetInfo reports it."""
    limit_bytes: Whole | None
    """Limit of set_per_process_memory_fraction; None: no limit."""
    torch: Text
    cuda: Text | None
    backend: Text
    """Name of the backend: native or cudaMallocAsync."""
    settings: Text
    """Text of the settings; "" if none were set."""
    settings_in_force: Settings
    """Settings at the window's end, as ``settings``."""
    settings_before: SettingsBefore | None = None
    """None: the settings did not change, or (a note says so) the time of the change is not known."""
    emptied: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    """Number of events before each call of torch.cuda.empty_cache(): a call without an effect makes no event."""
    reason: Text
    """Why the agent recorded: ``the first steps``, ``the peak rose``, ``asked for`` ..."""
    first_step: int
    """Number of the first step, from 1 as in series.STEPS."""
    last_step: int
    start: Layout | None
    """None: the events begin somewhere in the history (a snapshot that PyTorch wrote)."""
    end: Layout
    events: Columns
    lost_events: Whole | None = 0
    """Number of events that happened in between and are missing; None: not known."""
    pools: list[tuple[int, int]]
    """PyTorch's ids; (0, 0) is the default pool."""
    modules: list[Text] = []
    words: list[Text] = []
    """Files and functions of the frames."""
    frames: Columns = {}
    stacks: list[list[int]] = []
    """Positions among the frames, innermost first."""
    owners: Columns = {}
    """Empty if owners were not recorded, or nothing on this device has one."""
    owner_names: list[Text] = []
    """``transformer.h.3.mlp.c_fc.weight``, ``gradient of ...``, ``exp_avg of ...``; for an input the argument's name."""
    held: Columns = {}
    """Empty if no leak was known, or the window was too short for two scans."""
    holdings: list[Holding] = []
    scans: list[int] = []
    """Number of events before each scan."""
    notes: list[Text] = []
    """Remarks for the reader: a history that the user cleared, a limit that was reached."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Window).decode


class BadWindow(ValueError):
    """The bytes are not a window, or have an unknown format. The text says why."""


def pack(window: Window) -> bytes:
    """Compress a window for an artifact. Level 1: the columns are so regular that a higher level gains little."""
    return zlib.compress(_encode(window), 1)


def unpack(data: bytes) -> Window:
    """Read a window from an artifact. Raises BadWindow, with a field where one is wrong; limited by MAX_BYTES."""
    try:
        window = unpacked(data, _decode, MAX_BYTES)
    except BadArtifact as bad:
        raise BadWindow(str(bad)) from None
    if window.format != FORMAT:
        raise BadWindow(f"a window of format {window.format}; supported: {FORMAT}")
    _check(window)
    return window


def _check(window: Window) -> None:
    layouts = [layout for layout in (window.start, window.end) if layout is not None]
    for name, columns, known in [
        ("events", window.events, EVENTS),
        ("frames", window.frames, FRAMES),
        ("owners", window.owners, OWNERS),
        ("held", window.held, HELD),
        *(("segments", layout.segments, SEGMENTS) for layout in layouts),
        *(("blocks", layout.blocks, BLOCKS) for layout in layouts),
    ]:
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1 or any(length % 8 for length in lengths):
            raise BadWindow(f"{name}: columns of different lengths, {sorted(lengths)} bytes")
        missing = [key for key in known if key not in columns] if columns else []
        if missing:
            raise BadWindow(f"{name}: no column {missing[0]!r}")
