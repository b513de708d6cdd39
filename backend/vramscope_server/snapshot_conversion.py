"""Converts an uploaded snapshot: ``python -m vramscope_server.snapshot_conversion BYTES PARENT FILE FOLDER``.

Without a file and a folder it loads its machine code, which takes longer than to convert a hundred thousand events. Then it
waits for a line with both. The server starts it so when an upload starts.

A separate process: what a foreign file does to its memory or time ends with it, and the server (PARENT) stays responsive.
Prints lines of JSON: ``{"done", "total"}`` while it reads, ``{"curves"}`` when it has read, and at the end ``{"devices", "notes"}``
or ``{"problem"}``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypedDict

import numpy as np

from vramscope_server.analysis.snapshot_format.device_facts import DeviceFacts
from vramscope_server.analysis.snapshot_format.reader import MAX_MEMORY_BYTES, BadSnapshot, read
from vramscope_server.analysis.timeline.coarse_curve import coarse_curve
from vramscope_server.analysis.timeline.render_cache import save_pictures
from vramscope_server.analysis.trace.column_store import save, save_stacks
from vramscope_server.analysis.trace.counting_sort import numbered
from vramscope_server.analysis.trace.missing_events import missing_event_notes
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.child_process import end_with
from vramscope_server.numba_warmup import small_history

_TOLD_EVERY_SECONDS: Final = 0.2
_NICE: Final = 5
STACKS: Final = "stacks"
"""Folder that all devices share."""


class ConvertedFile(TypedDict):
    """Devices and notes of a converted file."""

    devices: list[DeviceFacts]
    notes: list[str]


def convert(
    source: Path, folder: Path, memory_bytes: int, tell: Callable[[Mapping[str, object]], None] | None = None
) -> ConvertedFile:
    """Convert a file into a new folder. ``tell`` gets the progress; by default it is printed.

    Raises BadSnapshot, OSError, MemoryError.
    """
    tell = tell or _print
    told_at = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > _TOLD_EVERY_SECONDS:
            told_at = time.monotonic()
            tell({"done": done, "total": total})

    snapshot = read(source, max_memory_bytes=min(memory_bytes, MAX_MEMORY_BYTES), progress=progress)
    size = source.stat().st_size
    tell({"done": size, "total": size})
    curves = [coarse_curve(trace) for trace in snapshot.devices]
    tell({"curves": [asdict(curve) for curve in curves if curve is not None]})
    source.unlink()  # converted; the disk may be small
    save_stacks(snapshot.devices[0], folder / STACKS)
    devices: list[DeviceFacts] = []
    while snapshot.devices:
        trace = snapshot.devices.pop(0)
        moments = save(trace, folder / str(trace.device))
        save_pictures(trace, folder / str(trace.device))
        devices.append(device_row(trace, moments.peak_reserved_bytes))
    return {"devices": devices, "notes": snapshot.notes}


def device_row(trace: Trace, peak_reserved_bytes: int) -> DeviceFacts:
    """A device, as a row of the list of snapshots."""
    events = trace.events
    time_ns = events.time_ns[events.time_ns >= 0]
    pools, _ = numbered(np.concatenate([events.pool, trace.end.segments.pool]))
    streams, _ = numbered(np.concatenate([events.stream, trace.end.segments.stream]))
    return {
        "device": trace.device,
        "events": len(events),
        "allocations": len(trace.lives),
        "out_of_memory": int(np.count_nonzero(events.action == 8)),
        "first_time_ns": int(time_ns.min()) if len(time_ns) else None,
        "last_time_ns": int(time_ns.max()) if len(time_ns) else None,
        "end_reserved_bytes": trace.end.reserved_bytes,
        "end_allocated_bytes": trace.end.allocated_bytes,
        "private_pools": [list(trace.pools[pool]) for pool in pools.tolist() if pool > 0][:100],
        "streams": streams[:100].tolist(),
        "settings": trace.parsed_settings[0].text,
        "settings_given": trace.settings,
        "settings_in_force": trace.settings_in_force,
        "torch": trace.torch,
        "notes": [*trace.notes, *missing_event_notes(trace)],
        "peak_reserved_bytes": peak_reserved_bytes,
    }


def _print(report: Mapping[str, object]) -> None:
    print(json.dumps(report), flush=True)


def _error_words(fault: OSError) -> str:
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the server's disk is full. Free some space there, and upload the file again"
    return fault.strerror or str(fault)


def prepare() -> None:
    """Load the machine code of a conversion, by converting a small file."""
    with tempfile.TemporaryDirectory(prefix="vramscope-") as folder:
        file = Path(folder) / "small.pickle"
        file.write_bytes(pickle.dumps(small_history(), protocol=4))
        convert(file, Path(folder), MAX_MEMORY_BYTES, lambda report: None)


def job_line(source: Path, folder: Path) -> str:
    """The line for a process that waits."""
    return json.dumps([str(source), str(folder)]) + "\n"


def main() -> None:
    memory_bytes = int(sys.argv[1])
    end_with(int(sys.argv[2]))
    os.nice(_NICE)
    words = sys.argv[3:]
    if not words:
        with contextlib.suppress(OSError, MemoryError):  # what is not loaded now is loaded later
            prepare()
        line = sys.stdin.readline()
        if not line:
            return  # no upload was completed
        words = json.loads(line)
    source, folder = map(Path, words)
    # Limits memory that is written to, not what numba maps and never touches.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, resource.RLIM_INFINITY))
    try:
        _print(convert(source, folder, memory_bytes))
    except BadSnapshot as fault:
        _print({"problem": str(fault)})
    except MemoryError:
        _print({"problem": f"it needs more than the {memory_bytes:,} bytes of memory that a conversion may use"})
    except OSError as fault:
        _print({"problem": f"its columns could not be stored: {_error_words(fault)}"})


if __name__ == "__main__":
    main()
