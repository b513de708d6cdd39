"""What a profile says, in two sentences: where the time goes, and what the memory at the peak is made of."""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.profile import NOT_ATTRIBUTED, PYTHON, Profile
from vramscope.protocol.series import PHASES, UNKNOWN
from vramscope_server.analysis.profile.tables import Table
from vramscope_server.analysis.units import amount, duration, percent

BUSY: Final = 0.8
"""a device that works less of the time waits for Python"""


def time_sentence(profile: Profile, operations: Table) -> str:
    """Where the time of the window went."""
    span_s = profile.span_ns / 1e9
    steps = profile.steps or 1
    begin = f"A step took {duration(span_s / steps)} while it was profiled"
    if profile.cost.step_before is not None:
        begin += f" ({duration(profile.cost.step_before)} without)"
    by_name = _by_name(operations, "self_device_ns" if profile.device_time else "self_cpu_ns")
    if not by_name or not profile.span_ns:
        return f"{begin}. What it did is not known."
    if profile.device_time and profile.device_busy_ns is not None:
        busy = profile.device_busy_ns / profile.span_ns
        waits = "" if busy >= BUSY else ": for the rest it waited for Python to launch work"
        tops = ", ".join(f"{name} {percent(value / profile.device_busy_ns)}" for name, value in _top(by_name, 3))
        return f"{begin}. The device worked {percent(busy)} of it{waits}. Of its work: {tops}."
    python = by_name.pop(PYTHON, 0)
    tops = ", ".join(f"{name} {percent(value / profile.span_ns)}" for name, value in _top(by_name, 3))
    return (
        f"{begin}. Of it Python outside of operations took {percent(python / profile.span_ns)}; on the CPU, by itself: {tops}. "
        "How long the device worked is unknown: no kernel was seen."
    )


def memory_sentence(profile: Profile, operations: Table, modules: Table, lines: Table) -> str:
    """What was alive at the window's peak."""
    if profile.peak_bytes is None:
        return "What the allocator held is unknown: there is no CUDA device."
    where = f"in step {profile.peak_step}" if profile.peak_step != UNKNOWN else "at the window's beginning"
    if 0 <= profile.peak_phase < len(PHASES):
        where += f", {_PHASE_WORDS[PHASES[profile.peak_phase]]}"
    text = f"At the peak ({where}) {amount(profile.peak_bytes)} were allocated"
    if profile.before_bytes is not None:
        text += f", {amount(profile.before_bytes)} of them since before the window (parameters, optimizer state, ..)"
    parts = []
    for table, words in ((lines, "line"), (modules, "module"), (operations, "operation")):
        by_name = _places(table) if table.name == "lines" else _by_name(table, "self_peak_bytes")
        tops = _top({name: value for name, value in by_name.items() if value > 0}, 2)
        if tops:
            told = " and ".join(f"{name} ({amount(value)})" for name, value in tops)
            parts.append(f"by {words}: {told}")
    if parts:
        text += ". Most of the rest was made, " + "; ".join(parts)
    return text + "."


_PHASE_WORDS: Final = {
    "other": "outside of all phases",
    "data": "between steps",
    "forward": "in the forward",
    "backward": "in the backward",
    "optimizer": "in the optimizer",
    "eval": "in the evaluation",
}


def _by_name(table: Table, quantity: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in zip(table.names, table.columns[quantity].tolist(), strict=True):
        if value > 0 and name != NOT_ATTRIBUTED:
            found[name] = found.get(name, 0) + value
    return found


def _places(table: Table) -> dict[str, int]:
    places: dict[str, int] = {}
    columns = table.columns
    for row in np.flatnonzero(~table.special if len(table) else np.zeros(0, bool)).tolist():
        name = f"{table.texts('file')[row].rsplit('/', 1)[-1]}:{columns['line'][row]}"
        places[name] = places.get(name, 0) + int(columns["self_peak_bytes"][row])
    return places


def _top(values: dict[str, int], count: int) -> list[tuple[str, int]]:
    return sorted(values.items(), key=lambda item: -item[1])[:count]
