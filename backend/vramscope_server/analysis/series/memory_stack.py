"""Memory of a device as one stack, from the card to the tensors. Pure functions on arrays.

A row is one step, or a group of steps with one reading of the peaks. After the last finished step a row is one sample. Each level
of a row has its highest value in that step. Allocated and reserved bytes are exact peaks of the allocator's counters; the use of
the card is the highest sample. A level is never smaller than the level inside it, so the parts add up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from vramscope.protocol.series import CATEGORIES, WITHIN_OTHER
from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.series.downsample import BoolArray, divide

Level = Literal["card", "reserved", "allocated"]
State = Literal["open", "folded"]

READING_HOLDS_S: Final = 5.0
"""Maximum distance of a row to the reading of unusable bytes that is used for it. The agent reads every two seconds or more."""
SAME_FREE: Final = 0.1
"""Maximum relative difference between the free bytes of a row and those at the reading that is used for it. With a larger
difference a tensor was freed in between, and the reading is not valid for the peak."""
HOLE: Final = 2.0
"""Minimum ratio of the time since the previous row to the row's own duration, for the difference to be shown as a hole."""
SMALLEST_BLOCK: Final = 512
"""Bytes of the allocator's smallest block. A smaller difference is a rounding error."""

STEP_COLUMNS: Final = [
    "time_ns",
    "step",
    "first_step",
    "duration_ns",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "foreign_reset",
    *(f"peak_{category}_bytes" for category in CATEGORIES),
]
SAMPLE_COLUMNS: Final = [
    "time_ns",
    "step",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "requested_bytes",
    "unusable_bytes",
    "private_pools_bytes",
    "private_active_bytes",
    "device_used_bytes",
    "process_device_bytes",
    "others_device_bytes",
]


class StackPart(NamedTuple):
    """One part of a level. It is shown while the level is open, or while it is folded."""

    role: str
    label: str
    level: Level
    shown: State
    meaning: str


PARTS: Final = (
    StackPart("parameters", "parameters", "allocated", "open", "weights of the modules that train"),
    StackPart("buffers", "buffers", "allocated", "open", "module buffers, such as running means"),
    StackPart("workspaces", "workspaces", "allocated", "open", "scratch memory of cuBLAS, which PyTorch keeps"),
    StackPart("optimizer", "optimizer state", "allocated", "open", "tensors that an optimizer keeps per parameter"),
    StackPart("gradients", "gradients", "allocated", "open", "the .grad tensors of the parameters"),
    StackPart(
        "activations",
        "activations, temporaries",
        "allocated",
        "open",
        "results that the forward pass keeps for the backward pass, and temporary results",
    ),
    StackPart("other", "other", "allocated", "open", "everything else that is allocated"),
    StackPart(
        "unsplit",
        "unknown",
        "allocated",
        "open",
        "allocated in a step whose categories were not counted at its peak, or between two samples",
    ),
    StackPart("requested", "requested", "allocated", "folded", "bytes that the program asked for, before rounding"),
    StackPart("rounding", "rounding", "allocated", "folded", "allocated minus requested, of the highest sample"),
    StackPart("allocated", "allocated", "allocated", "folded", "bytes in blocks that tensors own"),
    StackPart("unusable", "unusable", "reserved", "open", "free bytes that this run's requests cannot use"),
    StackPart("unused", "free or unusable", "reserved", "open", "free bytes, of which the unusable part is unknown"),
    StackPart("private", "private pools", "reserved", "open", "free bytes that only replays of CUDA graphs may use"),
    StackPart("usable", "free", "reserved", "open", "free bytes that this run can use"),
    StackPart("reserved", "reserved", "reserved", "folded", "bytes that PyTorch took from the device"),
    StackPart(
        "context",
        "this process outside PyTorch",
        "card",
        "open",
        "CUDA context, kernels, and libraries such as NCCL",
    ),
    StackPart(
        "outside", "outside PyTorch", "card", "open", "other memory in use; the share of this process is unknown"
    ),
    StackPart("others", "other processes", "card", "open", "memory of other processes on the device"),
    StackPart("unattributed", "unattributed", "card", "open", "in use by no process: the driver and the display"),
    StackPart("card", "in use on the card", "card", "folded", "memory in use on the device, of all processes"),
)
"""Parts from the bottom of the stack to its top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRows:
    """Quantities of each row, all of shape (n,), ordered by ``along``. NaN is unknown.

    along       time in ns, or step
    begin       where the row begins on the same axis
    step, first_step   number of the step; of a group of steps the last and the first
    finished    False for samples behind the last finished step
    breakdown   peak bytes by category
    device, context, others   use of the card at its highest sample: all, this process outside PyTorch, other processes
    rounding, pool_free       of the sample with most allocated
    unusable    nearest reading
    unusable_free   free bytes at that reading
    reset       code of ``foreign_reset``
    """

    along: FloatArray
    begin: FloatArray
    step: FloatArray
    first_step: FloatArray
    finished: BoolArray
    allocated: FloatArray
    reserved: FloatArray
    device: FloatArray
    context: FloatArray
    others: FloatArray
    rounding: FloatArray
    pool_free: FloatArray
    unusable: FloatArray
    unusable_free: FloatArray
    reset: FloatArray
    breakdown: dict[str, FloatArray]

    def take(self, at: IntArray) -> StackRows:
        """Return the rows at these positions."""
        values = {
            field.name: getattr(self, field.name)[at] for field in dataclasses.fields(self) if field.name != "breakdown"
        }
        return StackRows(**values, breakdown={name: one[at] for name, one in self.breakdown.items()})


def stack_rows(
    steps: Mapping[str, FloatArray], samples: Mapping[str, FloatArray], axis: Literal["time", "step"]
) -> StackRows:
    """Build the rows of a window.

    steps, samples   STEP_COLUMNS and SAMPLE_COLUMNS, shape (n,) and (m,), as the wire has them; NaN is unknown
    """
    steps, samples = _by_time(steps), _by_time(samples)
    ends, times = steps["time_ns"], samples["time_ns"]
    rows, all_samples = ends.size, times.size
    bounds = np.searchsorted(times, ends, side="right")
    starts = np.r_[0, bounds[:-1]] if rows else bounds
    tail = np.arange(int(bounds[-1]) if rows else 0, all_samples, dtype=np.int64)
    at_top = np.r_[_highest_in(samples["allocated_bytes"], starts, bounds), tail]
    at_device = np.r_[
        _highest_in(samples["device_used_bytes"], starts, bounds), _last_known(samples["device_used_bytes"])[tail]
    ]
    at_process: IntArray = np.r_[
        _highest_in(samples["process_device_bytes"], starts, bounds),
        _last_known(samples["process_device_bytes"])[tail],
    ]
    at_process = np.where(at_device >= 0, at_device, at_process)
    at_reserved = np.r_[_highest_in(samples["reserved_bytes"], starts, bounds), tail]

    def of(name: str, at: IntArray) -> FloatArray:
        return _taken(samples[name], at)

    def of_steps(name: str) -> FloatArray:
        return np.concatenate([steps[name], np.full(tail.size, np.nan)])

    finished = np.arange(rows + tail.size) < rows
    allocated = np.where(finished, of_steps("peak_allocated_bytes"), of("allocated_bytes", at_top))
    counted, sampled = of_steps("peak_reserved_bytes"), of("reserved_bytes", at_reserved)
    reserved = np.where(np.isfinite(counted), counted, sampled)
    pools = of("private_pools_bytes", at_top)
    at_reading = _nearest_reading(samples, np.concatenate([ends, times[tail]]))
    along, begin = (_along_time if axis == "time" else _along_steps)(steps, samples, tail)
    found = StackRows(
        along=along,
        begin=begin,
        step=np.r_[steps["step"], samples["step"][tail] + 1],
        first_step=np.r_[_first_steps(steps), samples["step"][tail] + 1],
        finished=finished,
        allocated=allocated,
        reserved=np.where(np.isfinite(reserved), np.fmax(reserved, allocated), np.nan),
        device=of("device_used_bytes", at_device),
        context=np.maximum(of("process_device_bytes", at_process) - of("reserved_bytes", at_process), 0.0),
        others=of("others_device_bytes", at_device),
        rounding=np.maximum(of("active_bytes", at_top) - of("requested_bytes", at_top), 0.0),
        pool_free=np.where(pools > 0, np.maximum(pools - of("private_active_bytes", at_top), 0.0), 0.0 * pools),
        unusable=of("unusable_bytes", at_reading),
        unusable_free=np.maximum(of("reserved_bytes", at_reading) - of("active_bytes", at_reading), 0.0),
        reset=of_steps("foreign_reset"),
        breakdown={category: of_steps(f"peak_{category}_bytes") for category in CATEGORIES},
    )
    return found.take(np.argsort(along, kind="stable"))


def thinned(rows: StackRows, points: int) -> StackRows:
    """Return about ``points`` rows. Each has the highest value of each level in its part of the axis, so no peak is lost.

    The breakdown is that of the highest step that has one.
    """
    done, tail = np.flatnonzero(rows.finished), np.flatnonzero(~rows.finished)
    parts = [rows.take(one) for one in (done, tail)]
    limits = (points, max(10, points // 8) if done.size else points)
    thin = [
        _buckets(part, limit) if part.along.size > limit else part for part, limit in zip(parts, limits, strict=True)
    ]
    both = {
        field.name: np.r_[getattr(thin[0], field.name), getattr(thin[1], field.name)]
        for field in dataclasses.fields(StackRows)
        if field.name != "breakdown"
    }
    breakdown = {name: np.r_[thin[0].breakdown[name], thin[1].breakdown[name]] for name in CATEGORIES}
    joined = StackRows(**both, breakdown=breakdown)
    return joined.take(np.argsort(joined.along, kind="stable"))


def part_sizes(rows: StackRows) -> dict[str, FloatArray]:
    """Return the bytes of each part of PARTS, by role. NaN is unknown, or a part that the row does not have."""
    known = np.array([rows.breakdown[name] for name in CATEGORIES])
    counted = np.nansum(known, axis=0)
    fits = np.isfinite(known).any(axis=0) & (counted <= rows.allocated + 1)
    sizes = {name: np.where(fits, rows.breakdown[name], np.nan) for name in CATEGORIES}
    rest = rows.allocated - np.where(fits, counted, 0.0)
    sizes["unsplit"] = np.where(rest >= SMALLEST_BLOCK, rest, np.nan)
    rounded = rows.rounding <= rows.allocated
    sizes["rounding"] = np.where(rounded, rows.rounding, np.nan)
    sizes["requested"] = np.where(rounded, rows.allocated - rows.rounding, np.nan)
    sizes["allocated"] = np.where(rounded, np.nan, rows.allocated)
    free = rows.reserved - rows.allocated
    pool = np.where(np.isfinite(rows.pool_free), np.minimum(rows.pool_free, free), 0.0)
    sizes["private"] = np.where(pool > 0, pool, np.nan)
    free = free - pool
    close = np.abs(rows.unusable_free - free) <= SAME_FREE * rows.unusable_free
    unusable = np.where(close, np.minimum(rows.unusable, free), np.nan)
    read = np.isfinite(unusable)
    sizes |= {"unusable": unusable, "usable": free - unusable, "unused": np.where(read, np.nan, free)}
    sizes["reserved"] = rows.reserved
    # a sample may miss the reserved memory that the allocator's counter has
    card = np.where(np.isfinite(rows.device), np.fmax(rows.device, rows.reserved), np.nan)
    outside = card - rows.reserved
    context = np.where(np.isfinite(card), np.minimum(rows.context, outside), rows.context)
    left = outside - context
    others = np.where(np.isfinite(rows.others), np.minimum(rows.others, left), left)
    sizes |= {"context": context, "outside": np.where(np.isfinite(context), np.nan, outside), "others": others}
    sizes["unattributed"] = np.where(np.isfinite(rows.others), left - others, np.nan)
    sizes["card"] = card
    return sizes


def level_totals(rows: StackRows, sizes: Mapping[str, FloatArray]) -> dict[Level, FloatArray]:
    """Return the bytes of each level. The card's are unknown where the driver does not report them."""
    return {"card": sizes["card"], "reserved": rows.reserved, "allocated": rows.allocated}


def peak_row(rows: StackRows) -> int | None:
    """Return the position of the first row with most allocated; None if none is known."""
    return None if not np.isfinite(rows.allocated).any() else int(np.nanargmax(rows.allocated))


def detailed_row(rows: StackRows, at: int) -> int | None:
    """Return the position of the row with a breakdown that is nearest to row ``at`` in steps; None if there is none."""
    needed = [rows.breakdown[name] for name in CATEGORIES if name not in WITHIN_OTHER]
    known = np.flatnonzero(np.isfinite(np.array(needed)).all(axis=0))
    return int(known[np.argmin(np.abs(rows.step[known] - rows.step[at]))]) if known.size else None


def _by_time(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    order = np.argsort(columns["time_ns"], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _along_time(
    steps: Mapping[str, FloatArray], samples: Mapping[str, FloatArray], tail: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return end and begin of each row in ns. A step begins where the row before ended, unless it is much shorter."""
    ends = np.r_[steps["time_ns"], samples["time_ns"][tail]]
    count = steps["step"] - _first_steps(steps) + 1
    own = np.r_[steps["duration_ns"] * count, np.zeros(tail.size)]
    before = np.r_[np.nan, ends[:-1]]
    gap = np.where(np.isfinite(before), ends - before, np.where(np.isfinite(own), own, 0.0))
    hole = np.isfinite(own) & (own > 0) & (gap > HOLE * own)
    return ends, ends - np.where(hole, own, gap)


def _along_steps(
    steps: Mapping[str, FloatArray], samples: Mapping[str, FloatArray], tail: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return end and begin of each row in steps. The samples of the unfinished step stand between it and the last one."""
    first = _first_steps(steps)
    last = samples["step"][tail]
    firsts = np.flatnonzero(np.r_[True, last[1:] != last[:-1]]) if tail.size else tail
    lengths = np.diff(np.r_[firsts, tail.size])
    share = (np.arange(tail.size) - np.repeat(firsts, lengths) + 1) / np.repeat(lengths, lengths)
    width = 1 / np.repeat(lengths, lengths)
    return np.r_[steps["step"], last + share], np.r_[first - 1, last + share - width]


def _first_steps(steps: Mapping[str, FloatArray]) -> FloatArray:
    return np.where(np.isfinite(steps["first_step"]), steps["first_step"], steps["step"])


def _last_known(values: FloatArray) -> IntArray:
    """Return for each position that of the last known value up to it; -1 if there is none."""
    return np.maximum.accumulate(np.where(np.isfinite(values), np.arange(values.size), -1)).astype(np.int64)


def _highest_in(values: FloatArray, starts: IntArray, ends: IntArray) -> IntArray:
    """Return the position of the highest known value in each of consecutive parts; of a part without one the last before
    its end, and -1 if there is none."""
    if not values.size:
        return np.full(starts.size, -1)
    last = _last_known(values)
    found = np.where(ends > 0, last[np.maximum(ends - 1, 0)], -1)
    full = np.flatnonzero(ends > starts)
    if full.size:
        inside = np.where(np.isfinite(values), values, -np.inf)[: ends[full[-1]]]
        begins = starts[full]
        tops = np.maximum.reduceat(inside, begins)
        hits = np.flatnonzero(inside == np.repeat(tops, np.diff(np.r_[begins, inside.size])))
        first = hits[np.searchsorted(hits, begins)]
        found[full] = np.where(np.isfinite(tops), first, found[full])
    return found


def _taken(values: FloatArray, at: IntArray) -> FloatArray:
    if not values.size:
        return np.full(at.size, np.nan)
    return np.where(at >= 0, values[np.maximum(at, 0)], np.nan)


def _nearest_reading(samples: Mapping[str, FloatArray], when: FloatArray) -> IntArray:
    """Return the position of the sample with unusable bytes nearest to each time in ns; -1 if none is near enough."""
    read = np.flatnonzero(np.isfinite(samples["unusable_bytes"]))
    if not read.size:
        return np.full(when.size, -1)
    times = samples["time_ns"][read]
    after = np.searchsorted(times, when)
    left, right = np.maximum(after - 1, 0), np.minimum(after, read.size - 1)
    nearer = np.where(np.abs(times[left] - when) <= np.abs(times[right] - when), left, right)
    return np.where(np.abs(times[nearer] - when) <= READING_HOLDS_S * 1e9, read[nearer], -1)


def _buckets(rows: StackRows, points: int) -> StackRows:
    scale = 1.0 if rows.along[-1] > 1e9 else 1e6  # samples of one step differ by fractions of it
    starts = divide((rows.along * scale).astype(np.int64), points).starts
    ends = np.r_[starts[1:], rows.along.size]

    def top(values: FloatArray) -> IntArray:
        """Position of the highest known value of each bucket; of none known the bucket's first row."""
        at = _highest_in(values, starts, ends)
        return np.where(at >= starts, at, starts)

    split = np.isfinite(np.array([rows.breakdown[name] for name in CATEGORIES])).any(axis=0)
    highest, detailed = top(rows.allocated), top(np.where(split, rows.allocated, np.nan))
    at_device = top(np.where(np.isfinite(rows.device), rows.device, rows.context))
    free = rows.reserved - rows.allocated
    at_reading = top(-np.abs(rows.unusable_free - free))
    chosen = {
        "along": ends - 1,
        "begin": starts,
        "step": highest,
        "reserved": top(rows.reserved),
        "device": at_device,
        "context": at_device,
        "others": at_device,
        "unusable": at_reading,
        "unusable_free": at_reading,
        "reset": top(rows.reset),
    }
    values = {
        field.name: getattr(rows, field.name)[chosen.get(field.name, highest)]
        for field in dataclasses.fields(rows)
        if field.name != "breakdown"
    }
    return StackRows(**values, breakdown={name: one[detailed] for name, one in rows.breakdown.items()})
