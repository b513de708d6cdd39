"""The contract of a recorded window: what the CUDA allocator did in some steps, from which it can be replayed.

A window is an artifact (``messages.Piece``): one :class:`Window`, as MessagePack, compressed by zlib. Columns are
little-endian int64 arrays, as on the wire; -1 says unknown. The agent's ``trace`` room writes it, the server's
``analysis/history`` reads it, and makes the same of a snapshot file of PyTorch's.

Stands on msgspec alone, because both sides import it.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final

import msgspec

from vramscope.protocol.messages import Text, Whole
from vramscope.protocol.series import CPU

FORMAT: Final = 1
MAX_BYTES: Final = 1 << 30
"""of one window when it is not compressed: some 10 million events"""

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
"""Codes of a block's state; the words are PyTorch's (2.x also says ``active_awaiting_free`` for the last)."""

EVENTS: Final = {
    "action": "position in ACTIONS",
    "address": "of the block or segment; of an oom: free bytes of the device",
    "size_bytes": "asked for (alloc, free_*), or of the segment's part; of an oom: the rounded request",
    "stream": "the CUDA stream's handle",
    "time_ns": "wall clock, since 1970; in whole microseconds",
    "pool": "position in Window.pools",
    "stack": "position in Window.stacks",
    "step": "number of the step it happened in, from 1",
    "phase": "position in series.PHASES",
    "module": "position in Window.modules",
}
"""Columns of the events, in the allocator's own order."""

SEGMENTS: Final = {
    "address": "where it begins",
    "size_bytes": "of the mapped range",
    "stream": "the CUDA stream's handle",
    "large": "1: of the large pool, 0: of the small one",
    "expandable": "1: part of an expandable segment, 0: made by cudaMalloc",
    "pool": "position in Window.pools",
}
BLOCKS: Final = {
    "segment": "position among the segments",
    "address": "where it begins",
    "size_bytes": "in the allocator's books, rounded",
    "requested_bytes": "asked for; of an inactive block: stale",
    "state": "position in STATES",
    "stack": "position in Window.stacks",
}
OWNER_CATEGORIES: Final = ("parameters", "gradients", "optimizer", "buffers", "input")
"""What an owner can be: codes are positions in this tuple."""
OWNERS: Final = {
    "event": "how many events had happened when it was seen",
    "address": "of the block that the tensor lies in",
    "category": "position in OWNER_CATEGORIES",
    "name": "position in Window.owner_names",
}
"""Columns of what the program had a name for when a step began, before its optimizer ran, and when it ended."""
HELD: Final = {
    "event": "how many events had happened when it was seen",
    "address": "of the block that the tensor lies in",
    "holding": "position in Window.holdings; -1: saved for the backward that begins then",
}
"""Columns of what leaks hold and their fixes would let go, and of what each backward needs."""
FRAMES: Final = {"file": "position in Window.words", "line": "from 1", "function": "position in Window.words"}

Columns = dict[str, bytes]
"""name -> rows * 8 bytes"""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All that the allocator held of one device at one moment: a snapshot without its traces."""

    segments: Columns
    blocks: Columns
    """in the order of their addresses"""
    counters: dict[str, int] = {}
    """torch.cuda.memory_stats() at that moment, flattened (``reserved_bytes.all.peak``)"""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One leak (``messages.Leak``, by these four fields), as the looks within a window saw it."""

    kind: Text
    name: Text
    file: Text | None
    line: int | None
    counted_bytes: list[int]
    """that its fix lets go beside what Window.held has addresses of, counted from its like: one a look; -1: not found by then"""


Settings = dict[str, int | float | bool | str | None]
"""each setting as the allocator has it; keys as PYTORCH_CUDA_ALLOC_CONF words them"""


class SettingsBefore(msgspec.Struct, frozen=True, kw_only=True):
    """What was in force in the first part of a window within which the settings were changed once."""

    until_event: Annotated[int, msgspec.Meta(ge=0)]
    """how many events had happened when they were changed"""
    settings: Text
    settings_in_force: Settings


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One device's allocator from ``start`` to ``end``, event by event."""

    format: int = FORMAT
    device: Annotated[int, msgspec.Meta(ge=CPU, le=1024)]
    device_name: Text
    device_total_bytes: Whole | None
    device_free_bytes: Whole | None
    """as cudaMemGetInfo told it at the start"""
    limit_bytes: Whole | None
    """what set_per_process_memory_fraction allows; None: no limit"""
    torch: Text
    cuda: Text | None
    backend: Text
    """native | cudaMallocAsync"""
    settings: Text
    """the settings as they were given; "" where none were"""
    settings_in_force: Settings
    """at its end, as ``settings``"""
    settings_before: SettingsBefore | None = None
    """None: they were as at the end, or (which a note says) it is not known until when they were not"""
    emptied: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    """how many events had happened at each call of torch.cuda.empty_cache() that was heard: one without an effect is no event"""
    reason: Text
    """what made the agent record: ``the first steps``, ``the peak rose``, ``asked for`` ..."""
    first_step: int
    """numbers of the steps that it holds, and of each event, from 1 as in series.STEPS"""
    last_step: int
    start: Layout | None
    """None: the file begins somewhere in the history (a snapshot that PyTorch wrote)"""
    end: Layout
    events: Columns
    lost_events: Whole | None = 0
    """that happened in between and are not there; None: not known"""
    pools: list[tuple[int, int]]
    """PyTorch's ids; (0, 0) is the default pool"""
    modules: list[Text] = []
    words: list[Text] = []
    """files and functions of the frames"""
    frames: Columns = {}
    stacks: list[list[int]] = []
    """positions among the frames, innermost first"""
    owners: Columns = {}
    """empty where nobody looked, or nothing is owned on this device"""
    owner_names: list[Text] = []
    """``transformer.h.3.mlp.c_fc.weight``, ``gradient of ...``, ``exp_avg of ...``; of an input the argument's name"""
    held: Columns = {}
    """empty where no leak was known, or the window was too short for two looks"""
    holdings: list[Holding] = []
    scans: list[int] = []
    """how many events had happened at each look at what is held"""
    notes: list[Text] = []
    """what a reader should know: a history that the user has cleared, a bound that was met"""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Window).decode


class BadWindow(ValueError):
    """The bytes are no window, or no window of a format that is known here. Says what is the matter."""


def pack(window: Window) -> bytes:
    """The artifact's bytes. Level 1: the columns are so regular that a higher one gains little."""
    return zlib.compress(_encode(window), 1)


def unpack(data: bytes) -> Window:
    """The window in an artifact's bytes. Raises BadWindow, with a field where one is wrong; bounded by MAX_BYTES."""
    try:
        opener = zlib.decompressobj()
        raw = opener.decompress(data, MAX_BYTES)
        if opener.unconsumed_tail:
            raise BadWindow(f"a window of more than {MAX_BYTES} bytes")
        if not opener.eof:
            raise BadWindow("the window is cut off")
        window = _decode(raw)
    except zlib.error as fault:
        raise BadWindow(f"not compressed as a window is: {fault}") from None
    except msgspec.MsgspecError as fault:
        raise BadWindow(str(fault)) from None
    if window.format != FORMAT:
        raise BadWindow(f"a window of format {window.format}; known here: {FORMAT}")
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
