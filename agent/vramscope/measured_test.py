"""Memory of one test: its exact peak, the allocator's retries, and the source lines whose memory was allocated at the peak.

``vramscope_server.pytest_plugin`` calls this in the child process in which a test runs on the emulated GPU.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from vramscope.measurement import measure
from vramscope.process.frames import is_library
from vramscope.protocol.leak_notes import is_leak, is_note, is_on_host
from vramscope.protocol.messages import Leak
from vramscope.session import Session
from vramscope.settings import Settings

MOST_EVENTS: Final = 1_000_000
"""Maximum number of allocator events that are recorded. If there are more, the lines of the first ones are missing."""
MOST_LINES: Final = 50
LEAST_STEPS: Final = 12
"""Optimizer steps from which a test tells whether it leaks: by then three scans have seen what grows."""


class LineMemory(msgspec.Struct, frozen=True):
    """Memory that one source line had allocated at the peak."""

    file: str
    line: int
    function: str
    source: str
    """Text of the line."""
    bytes: int


class FoundLeak(msgspec.Struct, frozen=True):
    """A variable that retains more memory with each step."""

    name: str
    file: str | None
    line: int | None
    held_bytes: int
    advice: str


class TestMemory(msgspec.Struct, frozen=True):
    """What a test needed on its device."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    """Times that the allocator had to give back its cached blocks to fulfil a request."""
    lines: list[LineMemory] = []
    """At the peak, most bytes first."""
    leaks: list[FoundLeak] | None = None
    """None: they were not searched for, or too few steps ended."""
    steps: int = 0
    """Optimizer steps that ended, if leaks were searched for."""


def measured(test: Callable[[], object], *, find_leaks: bool = False) -> TestMemory:
    """Call the test and measure it. Its exceptions pass. Recording the stacks slows each allocation by some 10 µs."""
    if not find_leaks:
        return _measured(test)
    session = Session()
    settings, _ = Settings.for_training(leaks=True, windows=False, profile=False, techniques=False, loss=False)
    session.open(None, settings, None, sends=False)
    try:
        memory = _measured(test)
    finally:
        found = {(leak.kind, leak.name): leak for leak in session.leaks}
        session.close()
    found |= {(leak.kind, leak.name): leak for leak in session.leaks}  # the end of a run is evidence, too
    steps = session.ended_steps
    leaks = [_found(leak) for leak in found.values() if _counts(leak, memory.peak_allocated_bytes)]
    return msgspec.structs.replace(memory, leaks=leaks if steps >= LEAST_STEPS else None, steps=steps)


def _counts(leak: Leak, peak_bytes: int) -> bool:
    return is_leak(leak) and not is_note(leak, peak_bytes) and not is_on_host(leak)


def _found(leak: Leak) -> FoundLeak:
    return FoundLeak(leak.name, leak.file, leak.line, leak.held_bytes, leak.advice)


def _measured(test: Callable[[], object]) -> TestMemory:
    import torch

    torch.cuda.init()
    record: Any = torch.cuda.memory._record_memory_history
    record("all", context="all", stacks="python", max_entries=MOST_EVENTS)
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    try:
        with measure() as memory:
            test()
        events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        record(None)
    return TestMemory(
        peak_allocated_bytes=memory.peak_bytes or 0,
        peak_reserved_bytes=memory.peak_reserved_bytes or 0,
        retries=torch.cuda.memory_stats().get("num_alloc_retries", 0) - retries,
        lines=lines_at_peak(events),
    )


def lines_at_peak(events: Iterable[Mapping[str, Any]]) -> list[LineMemory]:
    """Memory by source line where the sum of what the events allocate is highest.

    events   of one device, as ``torch.cuda.memory._snapshot()`` has them
    """
    events = [event for event in events if event["action"] in ("alloc", "free_completed")]
    live_bytes = highest_bytes = peak_at = 0
    for position, event in enumerate(events):
        live_bytes += event["size"] if event["action"] == "alloc" else -event["size"]
        if live_bytes > highest_bytes:
            highest_bytes, peak_at = live_bytes, position
    live: dict[int, Mapping[str, Any]] = {}
    for event in events[: peak_at + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = event
        else:
            live.pop(event["addr"], None)
    places: Counter[tuple[str, int, str]] = Counter()
    for event in live.values():
        places[_place(event.get("frames", []))] += event["size"]
    return [
        LineMemory(file, line, function, linecache.getline(file, line).strip(), size)
        for (file, line, function), size in places.most_common(MOST_LINES)
    ]


def _place(frames: Iterable[Mapping[str, Any]]) -> tuple[str, int, str]:
    """The innermost frame of the user's code; an empty file where there is none, as for what autograd's threads allocate."""
    for frame in frames:
        if not is_library(frame["filename"]) and frame["filename"] != __file__:
            return frame["filename"], frame["line"], frame["name"]
    return "", 0, "backward pass, or code without a stack"
