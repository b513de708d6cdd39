"""Summary of a rank's numbers, updated row by row: peaks, medians, a sparkline.

One :class:`RankSummary` for each rank is loaded, updated with each new block and stored in the transaction that stores
the block. So the list of runs does not read chunks, and a late or repeated block counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from typing_extensions import TypedDict

from vramscope.protocol import messages, series
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.answers.run_detail import ReservedParts
from vramscope_server.store.durations import Durations
from vramscope_server.store.host_memory import HighestHostMemory, higher
from vramscope_server.store.scalars import MOST_SCALARS, SCALARS, ScalarSummary
from vramscope_server.store.sparkline import Sparkline

BEHIND_PYTORCH: Final = 2
"""Code of ``foreign_reset`` for a step whose peaks are lower bounds."""


class PeakPlace(TypedDict):
    """Columns of a run's row that describe its peak; None is unknown."""

    peak_step: int | None
    peak_phase: str | None
    peak_categories: dict[str, int | None] | None


class RankSummary(msgspec.Struct):
    """Summary of a rank so far. None is unknown."""

    steps: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    step_peak_bytes: int | None = None
    """Highest allocated memory of a step; its step, phase and categories are known."""
    step_reserved_bytes: int | None = None
    """Highest reserved memory of a step."""
    peak_step: int | None = None
    peak_phase: str | None = None
    peak_categories: dict[str, int | None] | None = None
    phase_peaks_bytes: dict[str, int] = {}
    """Highest allocated memory in each phase, of the steps with known phases; empty in older summaries."""
    sample_peak_bytes: int | None = None
    """Highest allocated memory of a sample or after the last step, and its phase: a peak outside steps may exceed all steps."""
    sample_peak_phase: str | None = None
    sample_peak_step: int | None = None
    """The unfinished step, if the peak was in it."""
    reserved_bytes: int | None = None
    """Highest reserved memory of a sample. Of several such samples the two fields below are of the one with most allocated."""
    inactive_split_bytes: int | None = None
    reserved_minus_allocated_bytes: int | None = None
    unusable_bytes: int | None = None
    """Reserved memory at the reading of unusable memory with most reserved, then most allocated; the next four fields are
    of the same reading."""
    unusable_reserved_bytes: int | None = None
    unusable_allocated_bytes: int | None = None
    unusable_active_bytes: int | None = None
    unusable_requested_bytes: int | None = None
    process_device_bytes: int | None = None
    """Highest device memory of the process (NVML)."""
    device_used_bytes: int | None = None
    """Highest device memory of all processes together."""
    other_processes_bytes: int | None = None
    """Highest difference of the two in one sample."""
    host_memory: HighestHostMemory | None = None
    """Parts of host memory in the sample in which they were largest together."""
    ooms: int | None = None
    foreign_reset_steps: int | None = None
    """Steps in which other code reset the peak counters, of each device; None: none is known, and not every step reported
    it."""
    has_steps_without_peaks: bool = False
    """Whether steps have ended whose peaks are unknown."""
    has_tail: bool = False
    """Whether the peaks after the last step are known; False in older summaries."""
    lower_bound_steps: int | None = None
    """Number of those steps whose peaks are lower bounds, because PyTorch's functions were bypassed."""
    graphs_alive: int | None = None
    """Value of the newest step that reports it."""
    graphs_alive_time_ns: int | None = None
    first_time_ns: int | None = None
    last_time_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    scalars: dict[str, ScalarSummary] = {}
    """Numbers that the training reports, by name, the loss among them."""
    durations: Durations = msgspec.field(default_factory=Durations)
    by_step: Sparkline = msgspec.field(default_factory=Sparkline)
    by_time: Sparkline = msgspec.field(default_factory=lambda: Sparkline(width=100_000_000))

    @property
    def measured_peak_bytes(self) -> int | None:
        """Highest allocated memory. None if steps have ended whose peaks are unknown: samples alone miss them (Intel XPU, MPS)."""
        return None if self._has_samples_alone else self.peak_allocated_bytes

    @property
    def measured_reserved_bytes(self) -> int | None:
        """Highest reserved memory. None if steps have ended whose peaks are unknown."""
        return None if self._has_samples_alone else self.peak_reserved_bytes

    @property
    def sampled_allocated_bytes(self) -> int | None:
        """Highest allocated memory, if samples alone say so: the peak is at least this. None if it was measured."""
        return None if self._has_measured_peak else self.peak_allocated_bytes

    @property
    def sampled_reserved_bytes(self) -> int | None:
        """Highest reserved memory, if samples alone say so."""
        return None if self._has_measured_peak else self.peak_reserved_bytes

    @property
    def peaks(self) -> dict[str, int | None]:
        """Peaks, and why they may be lower bounds, as a run's row has them (``analysis.peak_bound``)."""
        return {
            "peak_allocated_bytes": self.measured_peak_bytes,
            "peak_reserved_bytes": self.measured_reserved_bytes,
            "sampled_allocated_bytes": self.sampled_allocated_bytes,
            "sampled_reserved_bytes": self.sampled_reserved_bytes,
            "lower_bound_steps": self.lower_bound_steps,
        }

    @property
    def _has_measured_peak(self) -> bool:
        return self.step_peak_bytes is not None or bool(self.phase_peaks_bytes) or self.has_tail

    @property
    def _has_samples_alone(self) -> bool:
        return self.has_steps_without_peaks and self.step_peak_bytes is None and not self.phase_peaks_bytes

    @property
    def reserved_by_steps(self) -> int | None:
        """Highest reserved memory of a step; of an older summary that of all samples."""
        if self.step_reserved_bytes is None and self.step_peak_bytes is not None:
            return self.peak_reserved_bytes
        return self.step_reserved_bytes

    @property
    def parts(self) -> ReservedParts | None:
        """Reserved memory at the reading of ``unusable_bytes`` in four parts that add up (docs/fragmentation.md). None is
        unknown."""
        reserved, active, requested = (
            self.unusable_reserved_bytes,
            self.unusable_active_bytes,
            self.unusable_requested_bytes,
        )
        if self.unusable_bytes is None or reserved is None or active is None or requested is None:
            return None
        free = max(0, reserved - active)
        unusable = min(free, self.unusable_bytes)  # blocks are read shortly after the counters
        return {
            "reserved_bytes": reserved,
            "requested_bytes": min(requested, active),
            "rounding_bytes": max(0, active - requested),
            "usable_bytes": free - unusable,
            "unusable_bytes": unusable,
        }

    @property
    def peak_place(self) -> PeakPlace:
        """Step, phase and categories of the peak. Of a peak outside steps only its phase."""
        if (self.sample_peak_bytes or 0) > (self.step_peak_bytes or 0):
            return {
                "peak_step": self.sample_peak_step,
                "peak_phase": self.sample_peak_phase,
                "peak_categories": None,
            }
        return {
            "peak_step": self.peak_step,
            "peak_phase": self.peak_phase,
            "peak_categories": self.peak_categories,
        }

    def add(self, stream: str, columns: Mapping[str, IntArray]) -> None:
        """Count the rows of a block. ``time_ns`` and ``step`` exist; any other column may be absent."""
        if stream == SCALARS:
            self._add_scalars(columns)
            return
        time_ns, step = columns["time_ns"], columns["step"]
        self.first_time_ns = _least(self.first_time_ns, int(time_ns.min()))
        self.last_time_ns = _most(self.last_time_ns, int(time_ns.max()))
        last = int(step.max())
        if last != series.UNKNOWN:
            self.last_step = _most(self.last_step, last)
            self.first_step = _least(self.first_step, int(step[step != series.UNKNOWN].min()))
            self.steps = _most(self.steps, last)
        if stream == "steps":
            self._add_steps(columns)
        else:
            self._add_samples(columns)

    def _add_steps(self, columns: Mapping[str, IntArray]) -> None:
        self._count_resets(columns.get("foreign_reset"))
        if "duration_ns" in columns:
            self.durations.add(columns["duration_ns"], _steps_of_rows(columns))
        self.peak_reserved_bytes = _highest(self.peak_reserved_bytes, columns.get("peak_reserved_bytes"))
        self._count_graphs(columns["time_ns"], columns.get("graphs_alive"))
        for phase in series.PHASES:
            highest_of_phase = _highest(self.phase_peaks_bytes.get(phase), columns.get(f"{phase}_peak_allocated_bytes"))
            if highest_of_phase is not None:
                self.phase_peaks_bytes[phase] = highest_of_phase
        peaks = columns.get("peak_allocated_bytes")
        at = 0 if peaks is None else int(peaks.argmax())
        highest = series.UNKNOWN if peaks is None else int(peaks[at])
        if peaks is None or highest == series.UNKNOWN:
            self.has_steps_without_peaks = True
            return
        self.by_step.add(columns["step"], peaks)
        self.step_reserved_bytes = _highest(self.reserved_by_steps, columns.get("peak_reserved_bytes"))
        self.peak_allocated_bytes = _most(self.peak_allocated_bytes, highest)
        if self.step_peak_bytes is None or highest > self.step_peak_bytes:
            self.step_peak_bytes = highest
            self.peak_step = _known(columns["step"], at)
            self.peak_phase = self.peak_categories = None
        if highest == self.step_peak_bytes:
            self._describe_peak(columns, (peaks == highest).nonzero()[0])

    def end(self, tail: messages.Tail) -> None:
        """Count what came after the last step, which no row contains."""
        self.has_tail = True
        self.peak_allocated_bytes = _most(self.peak_allocated_bytes, tail.peak_allocated_bytes)
        self.peak_reserved_bytes = _most(self.peak_reserved_bytes, tail.peak_reserved_bytes)
        if tail.peak_allocated_bytes >= (self.sample_peak_bytes or 0):
            self.sample_peak_bytes = tail.peak_allocated_bytes
            self.sample_peak_phase, self.sample_peak_step = tail.phase, tail.step
        if tail.phase is not None:
            before = self.phase_peaks_bytes.get(tail.phase, 0)
            self.phase_peaks_bytes[tail.phase] = max(before, tail.peak_allocated_bytes)

    def _add_scalars(self, columns: Mapping[str, IntArray]) -> None:
        for name, bits in columns.items():
            if name not in ("time_ns", "step") and (name in self.scalars or len(self.scalars) < MOST_SCALARS):
                self.scalars.setdefault(name, ScalarSummary()).add(columns["time_ns"], columns["step"], bits)

    def _count_graphs(self, time_ns: IntArray, alive: IntArray | None) -> None:
        if alive is None or not (known := (alive != series.UNKNOWN).nonzero()[0]).size:
            return
        newest = int(known[time_ns[known].argmax()])
        if self.graphs_alive_time_ns is None or int(time_ns[newest]) >= self.graphs_alive_time_ns:
            self.graphs_alive, self.graphs_alive_time_ns = int(alive[newest]), int(time_ns[newest])

    def _count_resets(self, resets: IntArray | None) -> None:
        """Count resets. That there were none is known only if every step reported it."""
        seen = 0 if resets is None else int((resets > 0).sum())
        known = resets is not None and int(resets.min()) != series.UNKNOWN
        first = not self.durations.counts and self.step_peak_bytes is None
        if resets is not None and (seen or (known and (first or self.foreign_reset_steps is not None))):
            self.foreign_reset_steps = (self.foreign_reset_steps or 0) + seen
            self.lower_bound_steps = (self.lower_bound_steps or 0) + int((resets == BEHIND_PYTORCH).sum())
        elif not known and not self.foreign_reset_steps:
            self.foreign_reset_steps = self.lower_bound_steps = None

    def _describe_peak(self, columns: Mapping[str, IntArray], rows: IntArray) -> None:
        """Phase and categories from the first of equally high steps that has them: not every step has a breakdown."""
        for at in rows.tolist():
            if self.peak_phase is None:
                self.peak_phase = _phase(columns.get("peak_phase"), at)
            categories = {name: _known(columns.get(f"peak_{name}_bytes"), at) for name in series.CATEGORIES}
            known = [value for value in categories.values() if value is not None]
            if known and not _is_complete(self.peak_categories):
                self.peak_categories = categories
            if self.peak_phase is not None and _is_complete(categories):
                return

    def _add_samples(self, columns: Mapping[str, IntArray]) -> None:
        allocated, reserved = columns.get("allocated_bytes"), columns.get("reserved_bytes")
        self.peak_allocated_bytes = _highest(self.peak_allocated_bytes, allocated)
        self.peak_reserved_bytes = _highest(self.peak_reserved_bytes, reserved)
        self.ooms = _highest(self.ooms, columns.get("ooms"))
        self._add_device(columns.get("process_device_bytes"), columns.get("device_used_bytes"))
        self.host_memory = higher(self.host_memory, columns)
        if allocated is not None and int(allocated.max()) != series.UNKNOWN:
            self.by_time.add(columns["time_ns"], allocated)
            at = int(allocated.argmax())
            if self.sample_peak_bytes is None or int(allocated[at]) > self.sample_peak_bytes:
                self.sample_peak_bytes = int(allocated[at])
                self.sample_peak_phase, self.sample_peak_step = _phase(columns.get("phase"), at), None
        if reserved is None:
            return
        if allocated is None:
            allocated = np.full_like(reserved, series.UNKNOWN)
        self._add_held(columns.get("inactive_split_bytes"), reserved, allocated)
        self._add_unusable(columns, reserved, allocated)

    def _add_held(self, inactive_split: IntArray | None, reserved: IntArray, allocated: IntArray) -> None:
        at = _nearest_to_peak(reserved, allocated)
        highest, held = int(reserved[at]), _known(allocated, at)
        if highest == series.UNKNOWN:
            return
        before, idle = self.reserved_bytes, self.reserved_minus_allocated_bytes
        before_held = None if before is None or idle is None else before - idle
        if (highest, _rank(held)) > (_rank(before), _rank(before_held)):
            self.reserved_bytes = highest
            self.inactive_split_bytes = _known(inactive_split, at)
            self.reserved_minus_allocated_bytes = None if held is None else highest - held

    def _add_device(self, process: IntArray | None, used: IntArray | None) -> None:
        self.process_device_bytes = _highest(self.process_device_bytes, process)
        self.device_used_bytes = _highest(self.device_used_bytes, used)
        if process is not None and used is not None:
            both = (process != series.UNKNOWN) & (used != series.UNKNOWN)
            if both.any():
                others = int(np.maximum(used[both] - process[both], 0).max())
                self.other_processes_bytes = _most(self.other_processes_bytes, others)

    def _add_unusable(self, columns: Mapping[str, IntArray], reserved: IntArray, allocated: IntArray) -> None:
        unusable = columns.get("unusable_bytes")
        if unusable is None or not (known := (unusable != series.UNKNOWN).nonzero()[0]).size:
            return
        at = int(known[_nearest_to_peak(reserved[known], allocated[known])])
        read = int(reserved[at]), int(allocated[at])
        if read >= (self.unusable_reserved_bytes or 0, _rank(self.unusable_allocated_bytes)):
            self.unusable_bytes = int(unusable[at])
            self.unusable_reserved_bytes, self.unusable_allocated_bytes = read[0], _known(allocated, at)
            self.unusable_active_bytes = _known(columns.get("active_bytes"), at)
            self.unusable_requested_bytes = _known(columns.get("requested_bytes"), at)


def _phase(codes: IntArray | None, at: int) -> str | None:
    code = _known(codes, at)
    return None if code is None else series.phase_name(code)


def _is_complete(categories: Mapping[str, int | None] | None) -> bool:
    """Whether each byte has a known category."""
    return categories is not None and all(
        categories.get(name) is not None for name in series.CATEGORIES if name not in series.WITHIN_OTHER
    )


def _nearest_to_peak(reserved: IntArray, allocated: IntArray) -> int:
    """Row with most reserved, and of several the one with most allocated: reserved memory hardly changes in a run, and
    free memory between two steps says little."""
    return int(np.lexsort((allocated, reserved))[-1])


def _rank(value: int | None) -> int:
    return series.UNKNOWN if value is None else value


def _steps_of_rows(columns: Mapping[str, IntArray]) -> IntArray:
    """Number of steps that each row covers."""
    step, first = columns["step"], columns.get("first_step")
    if first is None:
        return np.ones_like(step)
    return np.where(first == series.UNKNOWN, 1, np.maximum(step - first + 1, 1))


def _known(column: IntArray | None, at: int) -> int | None:
    if column is None or column[at] == series.UNKNOWN:
        return None
    return int(column[at])


def _highest(before: int | None, column: IntArray | None) -> int | None:
    if column is None:
        return before
    highest = int(column.max())
    return before if highest == series.UNKNOWN else _most(before, highest)


def _most(before: int | None, value: int) -> int:
    return value if before is None or value > before else before


def _least(before: int | None, value: int) -> int:
    return value if before is None or value < before else before


encode_summary = msgspec.msgpack.Encoder().encode
decode_summary = msgspec.msgpack.Decoder(RankSummary).decode
