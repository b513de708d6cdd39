"""Compiles numba functions ahead of their first use: ``python -m vramscope_server.numba_warmup [PARENT]``.

The functions that read and analyse histories are compiled on their first call and kept on disk: a minute of one core,
once after an installation or upgrade. This process does it at the lowest priority, by analysing a history of three
allocations in all the ways that pages use. A file beside the machine code marks that it is done, so that later starts
cost nothing.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from vramscope_server.analysis import numba_compile
from vramscope_server.child_process import end_with

_MIB: Final = 1 << 20
_BASE: Final = 0x7F0000000000
_NICE: Final = 19


def start() -> subprocess.Popen[bytes] | None:
    """Start the process if there is something to compile and a folder for it; else None. It may be killed at any time."""
    done = _done()
    if done is None or done.exists():
        return None
    words = [sys.executable, "-m", "vramscope_server.numba_warmup", str(os.getpid())]
    try:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:  # no memory, no more processes: it is optional
        return None


def compile_all() -> None:
    """Call everything that is compiled. Imports and compiles: seconds to a minute."""
    import numpy as np

    from vramscope_server.analysis.fragmentation.breakdown import breakdown_of
    from vramscope_server.analysis.snapshot_format.pickle_vm import row_tables, tables
    from vramscope_server.analysis.snapshot_format.reader import read
    from vramscope_server.analysis.timeline.curve import allocation_curve
    from vramscope_server.analysis.timeline.grouping import grouping_of
    from vramscope_server.analysis.timeline.overview import overview
    from vramscope_server.analysis.timeline.polygons import drawn_of, outlines, picture_of
    from vramscope_server.analysis.trace.notable_events import notable_events_of
    from vramscope_server.analysis.whatif.sweep import sweep
    from vramscope_server.analysis.whatif.window_start import by_best_fit

    row_tables.rebuild_slots(tables.empty_tables(), tables.POOLS)  # called for a file with more than a few thousand
    # The code that reads this file reads all later ones.
    (trace,) = read(pickle.dumps(small_history(), protocol=0)).devices
    notable_events_of(trace)
    breakdown_of(trace, 10)
    curve = allocation_curve(trace)
    grouping = grouping_of(trace, curve, "site")
    overview(curve, grouping, -1, curve.end)
    drawn = drawn_of(trace, curve, grouping, -1, curve.end)
    outlines(picture_of(trace, curve, grouping, drawn), trace.lives.size_bytes[drawn.rows])
    sweep(trace, ["", "expandable_segments:True"], device_bytes=64 * _MIB)
    one, two = np.ones(1, np.int64), np.array([0, 1])
    by_best_fit(two, one, one, one, one - 1, one - 1, one)  # a snapshot file does not record its initial state


def main() -> None:
    if len(sys.argv) > 1:
        end_with(int(sys.argv[1]))
    os.nice(_NICE)
    if not numba_compile.can_be_kept():
        return  # each process compiles for itself
    compile_all()
    done = _done()
    if done is not None:
        done.touch()


def _done() -> Path | None:
    """File that marks it as done: beside the machine code, or in the user's cache folder; None if neither is writable."""
    beside = Path(numba_compile.__file__).parent / "__pycache__"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramscope"
    for folder in (beside, cache):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder / f"warmed-{numba_compile.version()}"
    return None


def small_history() -> dict[str, Any]:
    """A snapshot of three allocations in one segment; one existed when the history began, and is freed."""
    frames = [{"name": "main", "filename": "train.py", "line": 1}]

    def event(action: str, at: int, size: int) -> dict[str, Any]:
        row = {"action": action, "addr": _BASE + at * _MIB, "size": size, "stream": 0, "time_us": 1, "frames": frames}
        return {**row, "pool_id": (0, 0)}

    events = [event("alloc", 2 * at, 2 * _MIB) for at in (1, 2)]
    events += [event("free_requested", 0, 2 * _MIB), event("free_completed", 0, 2 * _MIB)]
    blocks = [
        {"size": size * _MIB, "requested_size": size * _MIB, "state": state, "frames": frames}
        for size, state in ((2, "inactive"), (2, "active_allocated"), (2, "active_allocated"), (14, "inactive"))
    ]
    segment = {"device": 0, "address": _BASE, "total_size": 20 * _MIB, "stream": 0, "segment_type": "large"}
    return {"segments": [{**segment, "blocks": blocks}], "device_traces": [events]}


if __name__ == "__main__":
    main()
