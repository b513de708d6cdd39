"""Makes artifacts from a recorded profile: the tables, and the whole trace on request."""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vramscope.profiler.events import ProfileEvents
from vramscope.profiler.plan import ProfileRequest
from vramscope.profiler.raw import RawProfile
from vramscope.profiler.sliced import sliced
from vramscope.profiler.summarize import ProfileTotals, StringTable, line_columns, module_columns, operation_columns
from vramscope.profiler.timeline import history_columns
from vramscope.protocol import messages, series
from vramscope.protocol.profile import MAX_CHANGES, Cost, Profile, pack
from vramscope.transport.uploads import Artifact

MAX_TRACE_BYTES: Final = 1 << 30
"""Maximum size of an uncompressed trace."""
CHUNK_BYTES: Final = 1 << 18


class ProfilePacker:
    """Packs profiles, on the agent's own thread.

    on_cost   called with (request, total seconds) of each packed profile
    """

    def __init__(self, on_cost: Callable[[ProfileRequest, float], None]) -> None:
        self._on_cost = on_cost

    def artifacts(self, raw: RawProfile, pause: Callable[[], None]) -> list[Artifact]:
        """Return the tables of a profile, and its trace if requested."""
        start_s = time.thread_time()
        profiler, raw.profiler = raw.profiler, None
        events = ProfileEvents()
        events.read(profiler, raw.end_ns, pause)
        trace = trace_of(profiler, raw, pause) if raw.request.trace else None
        del profiler
        profile = tables_of(raw, events, lambda: time.thread_time() - start_s, pause)
        slower = max(0.0, (raw.step_within_s or 0.0) - (raw.step_before_s or 0.0)) * raw.steps
        self._on_cost(raw.request, raw.opening_s + raw.closing_s + slower + time.thread_time() - start_s)
        data = pack(profile)
        artifacts = [Artifact("profile", about_of(profile, len(data)), data)]
        if trace is not None:
            artifacts.append(Artifact("trace", {**about_of(profile, len(trace)), "format": "chrome, gzip"}, trace))
        return artifacts


def tables_of(
    raw: RawProfile, events: ProfileEvents, spent_s: Callable[[], float], pause: Callable[[], None]
) -> Profile:
    """Make the tables of the device with the most allocations; ``pause`` is called between slices."""
    import torch

    by_device: dict[int, int] = {}
    for event in sliced(events.allocations, pause):
        by_device[event.device] = by_device.get(event.device, 0) + max(0, event.size_bytes)
    watched = [counter.device for counter in raw.counters] or [series.CPU]
    device = max(watched, key=lambda one: by_device.get(one, 0))
    sums = ProfileTotals(events, raw, device, pause)
    words = StringTable()
    notes = list(raw.notes)
    for other in watched:
        if other != device and by_device.get(other):
            notes.append(f"cuda:{other} also allocated {by_device[other]} bytes, which are not in these tables")
    if len(sums.allocations) > MAX_CHANGES:
        notes.append(f"more than {MAX_CHANGES} allocations and frees: the memory history is left out")
    operations = operation_columns(sums, words, events)
    modules = module_columns(sums, words, events, raw.modules) if raw.modules is not None else {}
    lines = line_columns(sums, words, events) if raw.request.stacks else {}
    peak, counters = sums.peak, sums.counters
    at_peak = None if peak.time_ns is None else sums.mark_at(peak.time_ns)
    return Profile(
        device=device,
        device_name=counters.name if counters is not None else "CPU",
        torch=str(torch.__version__),  # PyTorch's is a subclass of str
        cuda=torch.version.cuda,
        reason=raw.request.reason,
        first_step=raw.first_step,
        last_step=raw.last_step,
        steps=raw.steps,
        device_time=bool(events.kernels),
        stacks=raw.request.stacks,
        modules_known=raw.modules is not None,
        span_ns=sums.span_ns,
        phases=phases_of(raw),
        device_busy_ns=sums.device_busy_ns if events.kernels else None,
        cost=Cost(
            opening=raw.opening_s,
            closing=raw.closing_s,
            packing=spent_s(),
            step_before=raw.step_before_s,
            step_within=raw.step_within_s,
        ),
        allocated_bytes=sums.allocated_bytes,
        freed_bytes=sums.freed_bytes,
        start_bytes=peak.start_bytes,
        peak_bytes=peak.bytes if counters is not None else None,
        before_bytes=peak.before_bytes,
        unattributed_peak_bytes=peak.unattributed_bytes,
        peak_step=series.UNKNOWN if at_peak is None else at_peak.step,
        peak_phase=series.UNKNOWN if at_peak is None else at_peak.phase,
        peak_ns=series.UNKNOWN if peak.time_ns is None else max(0, peak.time_ns - raw.start_ns),
        retries=None if counters is None else counters.rise("num_alloc_retries"),
        device_allocations=None if counters is None else counters.rise("num_device_alloc"),
        device_frees=None if counters is None else counters.rise("num_device_free"),
        operations=operations,
        modules=modules,
        lines=lines,
        history=history_columns(sums, (True, raw.modules is not None, raw.request.stacks)),
        words=words.words,
        notes=notes,
    )


def phases_of(raw: RawProfile) -> dict[str, int]:
    """Return nanoseconds of the window in each phase; {} if a part of it is unknown."""
    found: dict[str, int] = {}
    ends = [*(mark.time_ns for mark in raw.marks[1:]), raw.end_ns]
    for mark, end_ns in zip(raw.marks, ends, strict=True):
        if mark.phase == series.UNKNOWN:
            return {}
        name = series.PHASES[mark.phase]
        found[name] = found.get(name, 0) + max(0, end_ns - mark.time_ns)
    return found


def trace_of(profiler: Any, raw: RawProfile, pause: Callable[[], None]) -> bytes | None:
    """Return PyTorch's own trace (Chrome's JSON), gzipped, by way of a temporary file; None: too large."""
    handle, name = tempfile.mkstemp(prefix="vramscope-", suffix=".json")
    os.close(handle)
    path = Path(name)
    try:
        profiler.export_chrome_trace(name)
        if path.stat().st_size > MAX_TRACE_BYTES:
            raw.notes.append(f"the trace is left out: it has more than {MAX_TRACE_BYTES} bytes")
            return None
        parts = []
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                parts.append(packer.compress(chunk))
                pause()
        data = b"".join([*parts, packer.flush()])
    finally:
        path.unlink(missing_ok=True)
    if len(data) > messages.MAX_PIECES * messages.MAX_PIECE_BYTES:
        raw.notes.append(f"the trace is left out: it has {len(data)} bytes when packed")
        return None
    return data


def about_of(profile: Profile, packed_bytes: int) -> dict[str, messages.Scalar]:
    """Return the summary of a profile that lists show."""
    cost = profile.cost
    slower = max(0.0, (cost.step_within or 0.0) - (cost.step_before or 0.0)) * profile.steps
    return {
        "device": profile.device,
        "first_step": profile.first_step,
        "last_step": profile.last_step,
        "steps": profile.steps,
        "reason": profile.reason,
        "stacks": profile.stacks,
        "device_time": profile.device_time,
        "seconds": cost.opening + cost.closing + slower,
        "packing_seconds": cost.packing,
        "bytes": packed_bytes,
        "torch": profile.torch,
    }
