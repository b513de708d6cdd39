"""Summary of a profile in two sentences: where the time is spent, and the memory at the peak."""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.profile import NOT_ATTRIBUTED, PYTHON, Profile
from vramscope.protocol.series import PHASES, UNKNOWN, phase_place
from vramscope_server.analysis.number_format import amount, duration, percent
from vramscope_server.analysis.profile.tables import Table

BUSY: Final = 0.8
"""Minimum busy share of a device. Below it, the device waits for Python."""


def time_sentence(profile: Profile, operations: Table) -> str:
    """Sentence on the time of the profile."""
    span_s = profile.span_ns / 1e9
    steps = profile.steps or 1
    text = f"A profiled step took {duration(span_s / steps)}"
    if profile.cost.step_before is not None:
        text += f" ({duration(profile.cost.step_before)} without the profiler)"
    by_name = _by_name(operations, "self_device_ns" if profile.device_time else "self_cpu_ns")
    if not by_name or not profile.span_ns:
        return f"{text}. Its operations are unknown."
    if profile.device_time and profile.device_busy_ns is not None:
        busy = profile.device_busy_ns / profile.span_ns
        waiting = "" if busy >= BUSY else "; the rest of the time it waited for Python"
        tops = ", ".join(f"{name} {percent(value / profile.device_busy_ns)}" for name, value in _top(by_name, 3))
        return f"{text}. The device was busy for {percent(busy)} of it{waiting}. Top operations: {tops}."
    python = by_name.pop(PYTHON, 0)
    tops = ", ".join(f"{name} {percent(value / profile.span_ns)}" for name, value in _top(by_name, 3))
    return (
        f"{text}. Python outside of operations took {percent(python / profile.span_ns)} of it. Top operations on the CPU: {tops}. "
        "Device time is unknown: no kernels were recorded."
    )


def memory_sentence(profile: Profile, operations: Table, modules: Table, lines: Table) -> str:
    """Sentence on the memory at the peak."""
    if profile.peak_bytes is None:
        return "Allocated memory is unknown: there is no CUDA device."
    where = f"in step {profile.peak_step}" if profile.peak_step != UNKNOWN else "at the start of the profile"
    if 0 <= profile.peak_phase < len(PHASES):
        where += f", {phase_place(PHASES[profile.peak_phase])}"
    text = f"Peak allocated is {amount(profile.peak_bytes)} ({where})"
    if profile.before_bytes is not None:
        text += f", of which {amount(profile.before_bytes)} existed before the profile (parameters, optimizer state, …)"
    parts = []
    for table, words in ((lines, "line"), (modules, "module"), (operations, "operation")):
        by_name = _by_source_line(table) if table.name == "lines" else _by_name(table, "self_peak_bytes")
        tops = _top({name: value for name, value in by_name.items() if value > 0}, 2)
        if tops:
            largest = " and ".join(f"{name} ({amount(value)})" for name, value in tops)
            parts.append(f"by {words}: {largest}")
    if parts:
        text += ". Largest allocations of the rest " + "; ".join(parts)
    return text + "."


def _by_name(table: Table, quantity: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in zip(table.names, table.columns[quantity].tolist(), strict=True):
        if value > 0 and name != NOT_ATTRIBUTED:
            found[name] = found.get(name, 0) + value
    return found


def _by_source_line(table: Table) -> dict[str, int]:
    found: dict[str, int] = {}
    columns = table.columns
    for row in np.flatnonzero(~table.special if len(table) else np.zeros(0, bool)).tolist():
        name = f"{table.texts('file')[row].rsplit('/', 1)[-1]}:{columns['line'][row]}"
        found[name] = found.get(name, 0) + int(columns["self_peak_bytes"][row])
    return found


def _top(values: dict[str, int], count: int) -> list[tuple[str, int]]:
    return sorted(values.items(), key=lambda item: -item[1])[:count]
