"""Converts step records to the columns of a Block message."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence

from vramscope.protocol import messages, series
from vramscope.steps.records import CategoryBytes, StepRecord

UNKNOWN = series.UNKNOWN


def packed(values: Sequence[int]) -> bytes:
    """Encode values as little-endian int64, as the wire format requires."""
    column = array("q", values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def step_block(
    steps: Sequence[StepRecord],
    before_ns: int,
    device: int,
    wall_ns: Callable[[int], int],
) -> messages.Block:
    """Return rows of the stream ``steps`` for one device.

    before_ns   perf_counter_ns at the end of the step before the first of these
    wall_ns     perf_counter_ns -> nanoseconds since 1970
    """
    rows = []
    for step in steps:
        row = step_row(step, (step.end_ns - before_ns) // step.steps, device)
        row["time_ns"] = wall_ns(step.end_ns)
        rows.append(row)
        before_ns = step.end_ns
    names: set[str] = set().union(
        *rows
    )  # a fast loop makes thousands of rows a second, so fields that no row has are left out
    columns = {name: [row.get(name, UNKNOWN) for row in rows] for name in series.STEPS if name in names}
    known = {name: packed(column) for name, column in columns.items() if column.count(UNKNOWN) < len(rows)}
    return messages.Block(stream="steps", device=device, rows=len(steps), columns=known)


def step_row(step: StepRecord, duration_ns: int, device: int) -> dict[str, int]:
    """Return the known columns of a record. ``duration_ns``: duration of its step, or the mean of several steps."""
    row = {
        "step": step.number,
        "duration_ns": duration_ns,
        "micro_steps": step.micro_steps,
        "watched": int(step.watched),
        "agent_ns": step.agent_ns // step.steps,
        "graphs_alive": step.after.graphs_alive,
    }
    if step.devices or device == series.CPU:  # else it is memory of the host, and the row is of another device
        row["after_step_bytes"] = step.after.after_step_bytes
    if step.steps > 1:
        row["first_step"] = step.number - step.steps + 1
    position = step.devices.index(device) if device in step.devices else None
    for interval in step.intervals:
        phase = series.PHASES[interval.phase]
        if step.watched:
            key = f"{phase}_ns"
            row[key] = row.get(key, 0) + interval.own_ns
        if position is None or position >= len(interval.cuts):
            continue
        cut = interval.cuts[position]
        if step.watched:
            for key, value in (
                (f"{phase}_peak_allocated_bytes", cut.peak_allocated_bytes),
                (f"{phase}_peak_reserved_bytes", cut.peak_reserved_bytes),
            ):
                row[key] = max(row.get(key, 0), value)
        if cut.peak_allocated_bytes > row.get("peak_allocated_bytes", -1):
            row["peak_allocated_bytes"] = cut.peak_allocated_bytes
            if step.watched:
                row["peak_phase"] = interval.phase
        row["peak_reserved_bytes"] = max(row.get("peak_reserved_bytes", 0), cut.peak_reserved_bytes)
        row["foreign_reset"] = max(row.get("foreign_reset", 0), cut.reset_seen)
        row["end_allocated_bytes"], row["end_reserved_bytes"] = cut.allocated_bytes, cut.reserved_bytes
        row["after_step_bytes"] = cut.allocated_bytes
    if step.breakdown and (step.devices or device == series.CPU):
        at_end, at_peak = step.breakdown[position or 0]
        row.update(split_columns("end", at_end))
        row.update(split_columns("peak", at_peak))
    return row


def split_columns(when: str, split: CategoryBytes) -> dict[str, int]:
    return {f"{when}_{category}_bytes": value for category, value in zip(series.CATEGORIES, split, strict=True)}
