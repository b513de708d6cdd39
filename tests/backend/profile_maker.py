"""A small profile, as an agent sends it: two steps of a model of two layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from wire_maker import GIB

from vramscope.protocol import series
from vramscope.protocol.profile import HISTORY, KEYS, NO_LINE, OUTSIDE, PYTHON, QUANTITIES, Cost, Profile

MARKUP = "<img src=x onerror=alert(1)>"


def columns(table: str, words: list[str], rows: list[dict[str, Any]]) -> dict[str, bytes]:
    """Columns from rows; texts become words; what is not given is 0."""

    def number(key: str, value: Any) -> int:
        if isinstance(value, str):
            if value not in words:
                words.append(value)
            return words.index(value)
        return int(value)

    made = {}
    for key in (*KEYS[table], *QUANTITIES):
        empty: Any = "" if key in ("shapes", "kind", "file") else 0
        made[key] = np.array([number(key, row.get(key, empty)) for row in rows], "<i8").tobytes()
    return made


def history_of(changes: list[tuple[int, int | None, int, int, int]]) -> dict[str, bytes]:
    """Columns of profile_tables.HISTORY from (bytes, allocated afterwards, a row of each table)."""
    rows = [(change, series.UNKNOWN if total is None else total, *rows) for change, total, *rows in changes]
    return {
        name: np.array(column, "<i8").tobytes() for name, column in zip(HISTORY, zip(*rows, strict=True), strict=True)
    }


def a_profile(*, device_time: bool = True, **changes: Any) -> Profile:
    """Two steps of a model of two layers: 3 GiB at the peak, 1 GiB of them from before."""
    words: list[str] = []

    def times(cpu: int, device: int) -> dict[str, int]:
        known = device if device_time else series.UNKNOWN
        return {"cpu_ns": cpu, "self_cpu_ns": cpu, "device_ns": known, "self_device_ns": known}

    def held(allocated: int, peak: int) -> dict[str, int]:
        both = {"allocated_bytes": allocated, "peak_bytes": peak, "freed_bytes": allocated}
        return {**both, **{f"self_{name}": value for name, value in both.items()}}

    mm = {"name": "aten::mm", "calls": 4, **held(3 * GIB, GIB)}
    operations = columns("operations", words, [
        {**mm, "phase": 2, "shapes": "8x8, 8x8", **times(30_000_000, 70_000_000)},
        {**mm, "phase": 3, "calls": 2, **held(GIB, GIB // 2), **times(10_000_000, 10_000_000)},
        {"name": MARKUP, "phase": 2, "calls": 1, **held(GIB, GIB // 2), **times(20_000_000, 0)},
        {"name": PYTHON, "phase": series.UNKNOWN, **times(40_000_000, 0)},
    ])  # fmt: skip
    whole = {"allocated_bytes": 5 * GIB, "freed_bytes": 5 * GIB, "peak_bytes": 2 * GIB}
    modules = columns("modules", words, [
        {"name": "Net", "kind": "Net", "calls": 2, **times(60_000_000, 80_000_000), **whole},
        {"name": "up", "kind": "Linear", "calls": 2, **held(4 * GIB, 3 * GIB // 2), **times(40_000_000, 70_000_000)},
        {"name": "up.inner", "kind": MARKUP, "calls": 2, **held(GIB, GIB // 2), **times(0, 10_000_000)},
        {"name": OUTSIDE, **times(40_000_000, 0)},
    ])  # fmt: skip
    line = {"name": "forward", "file": "src/net.py"}
    lines = columns("lines", words, [
        {**line, "line": 7, "last_line": 7, "calls": 4, **held(4 * GIB, 3 * GIB // 2), **times(40_000_000, 80_000_000)},
        {**line, "line": 8, "last_line": series.UNKNOWN, "calls": 1, **held(GIB, GIB // 2), **times(20_000_000, 0)},
        {"name": NO_LINE, "line": series.UNKNOWN, "last_line": series.UNKNOWN, **times(40_000_000, 0)},
    ])  # fmt: skip
    history = history_of(
        [
            # (change, allocated or None, rows of operations, modules, lines)
            (GIB, 2 * GIB, 0, 1, 0),
            (GIB // 2, 5 * GIB // 2, 2, 2, 1),
            (GIB // 2, 3 * GIB, 1, 1, 0),
            (-GIB // 2, None, 1, 1, 0),
            (-GIB // 2, 2 * GIB, 2, 2, 1),
            (1 << 20, 2 * GIB + (3 << 20), 0, 1, 0),  # (2 MiB came that no event reports)
            (-GIB, GIB + (3 << 20), 0, 1, 0),
            (-GIB // 4, 3 * GIB // 4 + (3 << 20), -1, -1, -1),
            (-1 << 20, 3 * GIB // 4, 0, 1, 0),  # (and the 2 MiB went)
        ]
    )
    facts: dict[str, Any] = {
        "device": 0, "device_name": "NVIDIA H100 80GB HBM3", "torch": "2.13.0", "cuda": "13.0", "reason": "asked for",
        "first_step": 20, "last_step": 21, "steps": 2, "device_time": device_time, "stacks": True, "modules_known": True,
        "span_ns": 100_000_000, "device_busy_ns": 80_000_000 if device_time else None,
        "cost": Cost(opening=0.002, closing=0.1, packing=0.4, step_before=0.03, step_within=0.05),
        "allocated_bytes": 5 * GIB, "freed_bytes": 5 * GIB, "start_bytes": GIB, "peak_bytes": 3 * GIB, "before_bytes": GIB,
        "unattributed_peak_bytes": 0, "peak_step": 20, "peak_phase": 3, "peak_ns": 30_000_000, "retries": 0,
        "device_allocations": 1, "device_frees": 0, "operations": operations, "modules": modules, "lines": lines,
        "history": history, "words": words,
    }  # fmt: skip
    return Profile(**{**facts, **changes})
