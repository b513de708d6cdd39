"""Splits a device's allocated bytes into parameters, gradients, optimizer state, buffers, activations and the rest.

Parameters, gradients, optimizer state, buffers (:mod:`vramscope.memory.tensor_bytes`) and workspaces of cuBLAS
(:mod:`vramscope.memory.cublas_workspaces`) are counted in some steps only (:class:`Budget`). A later step that ends with the
same allocated bytes has the same split. A step that ends with other allocated bytes has the same counted bytes if the numbers
of parameters, gradients and optimizer states and the table of workspaces have not changed.

At the peak only some gradients exist (:mod:`vramscope.memory.gradient_peak`). Activations are all other bytes that were allocated
since the forward pass began, temporaries of the running operation included. After the backward pass the activations are gone.
New bytes that are not optimizer state are then temporaries, of ``foreach`` or of gradient clipping. *Other* are all remaining
bytes from before, such as the batch and old outputs. The categories always add up to the allocated bytes. A workspace that is
new in the interval of the peak counts as an activation in that step, because it may be younger than the peak.

In a control step (steps/clock.py) the peak is known, but not its phase. If an earlier step had the same peak, its split is used.
Otherwise the split follows from the last step whose phases were read (:class:`PeakOrigin`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from vramscope.memory.category_arithmetic import (
    after_backward,
    allocated_before_forward,
    at_end_split,
    forward_of,
    split_with_rest,
    workspaces_at,
)
from vramscope.memory.cublas_workspaces import CublasWorkspaces
from vramscope.memory.gradient_peak import BackwardPeaks
from vramscope.memory.peak_counters import Interval
from vramscope.memory.tensor_bytes import Counts, OwnedBytes, count, counts_of, gradient_bytes, parameters_of
from vramscope.protocol.series import CPU, UNKNOWN
from vramscope.steps.phase import BACKWARD, FORWARD, OPTIMIZER, OTHER
from vramscope.steps.records import CategoryBytes, PhaseInterval

if TYPE_CHECKING:
    import torch

FIRST_STEPS = frozenset((1, 2, 3, 5, 10, 20, 50, 100))
"""Steps that are always counted, because memory changes most in the first steps."""
HEIGHTS = 32
"""Number of remembered peaks."""


class PeakOrigin(NamedTuple):
    """Peaks of one device in the last step whose phases were read, and what they consist of."""

    held: OwnedBytes
    arrived: int
    """Uncounted bytes, mainly of the batch, that were allocated between the end of the previous step and the first forward."""
    phase: int
    """Forward or backward, whichever had the higher peak."""
    forward: int
    """Position in the step of the forward pass at that peak, or before it."""
    behind: int
    """Bytes of the highest peak after backward above the bytes at the step's end; -1: no such peak."""
    gradients_behind: int
    temporaries_behind: int


class Budget:
    """Allows a task as long as it takes at most ``fraction`` of the elapsed time."""

    def __init__(self, fraction: float = 0.001, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._fraction = fraction
        self._now = now
        self._free_at_ns = 0

    def allows(self, now_ns: int) -> bool:
        return now_ns >= self._free_at_ns

    def spent(self, nanoseconds: int) -> None:
        self._free_at_ns = self._now() + int(nanoseconds / self._fraction)


class ReadStep(NamedTuple):
    """A step whose phases were read, on one device."""

    position: int
    """Position of the device in the counters."""
    intervals: list[PhaseInterval]
    held: OwnedBytes
    """Counted bytes at its end."""
    other_before: int
    """Uncounted bytes before it."""
    workspaces_before: int
    """Workspaces before it."""


class LastSplit(NamedTuple):
    """A step and its breakdown. A later step with the same byte counts has the same breakdown."""

    marks: list[tuple[int, list[Interval]]]
    splits: list[tuple[CategoryBytes, CategoryBytes]]
    ended: dict[int, tuple[int, CategoryBytes]]


class Categories:
    """Memory of steps by category (docs/anatomy.md). Everything runs on the training thread, so no tensor changes meanwhile.

    optimizers, roots   live views (weak sets); no strong reference to their members is kept
    peak_of             device -> the allocator's peak allocated bytes now; None without CUDA
    """

    def __init__(
        self,
        optimizers: Iterable[torch.optim.Optimizer],
        roots: Iterable[torch.nn.Module],
        peak_of: Callable[[int], int] | None,
        *,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._optimizers = optimizers
        self._roots = roots
        self._backward = None if peak_of is None else BackwardPeaks(peak_of)
        self._now = now
        self._count_budget = Budget(now=now)
        self._peak_budget = Budget(now=now)
        self._spent_ns = 0
        self._step = 1
        self._sampling = False
        self._began = False
        self._before_forward: dict[int, OwnedBytes] = {}
        self._gradients_before_forwards: dict[int, list[int]] = {}
        """Gradients when each forward pass of the last sampled step began, by device. Under accumulation they grow."""
        self._states: list[int] = []
        """Number of each optimizer's states when the first forward pass of a sampled step began."""
        self._counted: dict[int, tuple[Counts, OwnedBytes]] = {}
        self._last: dict[int, tuple[int, OwnedBytes]] = {}
        self._ended: dict[int, tuple[int, CategoryBytes]] = {}
        """Allocated bytes at the last step's end, and their breakdown, by device."""
        self._read: dict[int, ReadStep] = {}
        """Last step whose phases were read, by device."""
        self._workspaces = CublasWorkspaces()
        self._workspaces_before: dict[int, int] = {}
        """Workspaces at the end of the step before, by device."""
        self._workspaces_seen: dict[int, dict[int, int]] = {}
        """Workspaces when intervals of a sampled step ended, by device and by the identity of the interval's counters."""
        self._evaluated = False
        self._by_height: dict[int, dict[int, CategoryBytes]] = {}
        """Breakdowns of steps whose phases were read, by peak; the newest HEIGHTS ones for the current counts."""
        self._last_splits: dict[bool, LastSplit] = {}
        """Last complete breakdown of a step whose phases were read (True), and of a control step (False)."""

    # -- within a step --------------------------------------------------------------------------------------------------

    def begin(self, phase: int, devices: tuple[int, ...], cuts: list[Interval]) -> None:
        """Handle the begin of a phase; ``cuts`` are those of the phase that ended. Does nothing unless the step is sampled."""
        if not self._began:
            self._began = True
            wanted = self._step in FIRST_STEPS or self._peak_budget.allows(self._now())
            self._sampling = wanted and bool(devices) and self._backward is not None
        if not self._sampling or self._backward is None:
            return
        start = self._now()
        if self._backward.following:
            self._backward.stop(devices, cuts)
        for device in devices:
            self._workspaces_seen.setdefault(device, {})[id(cuts)] = self._workspaces.bytes_on(device)
        if phase == FORWARD:
            for device in devices:
                if device in self._before_forward:
                    gradients = gradient_bytes(self._optimizers, self._roots, device)
                else:
                    held = self._before_forward[device] = self._count(device)
                    self._gradients_before_forwards[device], gradients = [], held.gradients
                self._gradients_before_forwards[device].append(gradients)
            self._states = self._states or self._number_of_states()
        elif phase == BACKWARD:
            begun_with = {device: gradient_bytes(self._optimizers, self._roots, device) for device in devices}
            self._backward.follow(begun_with, parameters_of(self._optimizers, self._roots))
        elif phase == OPTIMIZER and self._number_of_states() != self._states:
            # An optimizer from before attach is known only from its first step on. Its state is not new in this step.
            for device, before in self._before_forward.items():
                self._before_forward[device] = before._replace(optimizer=self._count(device).optimizer)
        self._spent_ns += self._now() - start

    def _number_of_states(self) -> list[int]:
        return [len(optimizer.state) for optimizer in list(self._optimizers)]

    def evaluated(self) -> None:
        """Note that a control step includes an evaluation, so that its peak may be that of the evaluation."""
        self._evaluated = True

    def end_step(
        self, intervals: list[PhaseInterval], devices: tuple[int, ...]
    ) -> list[tuple[CategoryBytes, CategoryBytes]]:
        """Return the splits at the step's end and at its peak, for each device."""
        start = self._now()
        if self._backward is not None and self._backward.following:
            self._backward.stop(devices, intervals[-1].cuts)
        due = self._count_budget.allows(start)
        counts, read = due or self._sampling, len(intervals) > 1
        marks = [(interval.phase, interval.cuts) for interval in intervals]
        last = self._last_splits.get(read)
        if last is not None and last.marks == marks and not counts:
            self._step += 1
            self._began = self._evaluated = False
            self._ended = last.ended
            return last.splits
        splits, self._ended = [], dict(self._ended)
        for position, device in enumerate(devices or (CPU,)):
            allocated = intervals[-1].cuts[position].allocated_bytes if devices else UNKNOWN
            held = self._held(device, allocated, counts)
            if held is None:
                self._ended.pop(device, None)
                splits.append((CategoryBytes(), CategoryBytes()))
                continue
            at_end = at_end_split(held, allocated)
            at_peak = self._peak_split(device, position, intervals, held) if devices else CategoryBytes()
            self._workspaces_before[device] = held.workspaces
            self._ended[device] = (allocated, at_end)
            splits.append((at_end, at_peak))
        if counts:
            self._last_splits.clear()
            spent = self._spent_ns + self._now() - start
            self._count_budget.spent(spent)
            if self._sampling:
                self._peak_budget.spent(2 * spent)
        self._step += 1
        self._spent_ns, self._began, self._sampling, self._evaluated = 0, False, False, False
        self._before_forward.clear()
        self._states.clear()
        self._workspaces_seen.clear()
        if devices and not counts and all(split.is_complete for pair in splits for split in pair):
            self._last_splits[read] = LastSplit(marks, splits, self._ended)
        return splits

    def end(self) -> None:
        """Remove the hooks of a backward pass that is followed."""
        if self._backward is not None:
            self._backward.stop((), [])

    def _held(self, device: int, allocated: int, counts: bool) -> OwnedBytes | None:
        """Return the counted bytes at the end of this step; None if the last count may be outdated and none is due."""
        known = self._last.get(device)
        if counts or known is None:
            held = self._count(device)
            if known is None or held != known[1]:  # the uncounted bytes are then also different
                self._by_height.pop(device, None)
                self._ended.pop(device, None)
            self._counted[device] = (counts_of(self._optimizers), held)
        elif known[0] == allocated:
            return known[1]
        else:
            then, held = self._counted[device]
            now = counts_of(self._optimizers)
            if now != then and now.gradients == 0:
                now, held = now._replace(gradients=then.gradients), held._replace(gradients=0)
            if now != then or not now.parameters or self._workspaces.has_changed():
                return None
        self._last[device] = (allocated, held)
        return held

    def _peak_split(
        self, device: int, position: int, intervals: list[PhaseInterval], held: OwnedBytes
    ) -> CategoryBytes:
        """Return the split at the step's peak. A control step with a known peak has the split of that peak."""
        intervals = [
            interval for interval in intervals if position < len(interval.cuts)
        ]  # intervals before a device was watched do not have it
        place = max(range(len(intervals)), key=lambda one: intervals[one].cuts[position].peak_allocated_bytes)
        peak = intervals[place].cuts[position].peak_allocated_bytes
        by_height = self._by_height.setdefault(device, {})
        ended = self._ended.get(device)
        if len(intervals) > 1:
            other_before = UNKNOWN if ended is None else ended[1].other
            workspaces_before = self._workspaces_before.get(device, UNKNOWN)
            self._read[device] = ReadStep(position, intervals, held, other_before, workspaces_before)
            if self._sampling and self._backward is not None:
                self._backward.note(device, allocated_before_forward(intervals, position))
        at_peak = held._replace(workspaces=self._workspaces_at(place, device, intervals, held))
        if ended is not None and ended[0] == peak:  # memory was highest at the begin of the step
            split = ended[1]
        elif len(intervals) == 1:
            return by_height.get(peak) or self._split_control_step(device, held, intervals[0].cuts[position])
        elif place in after_backward(intervals):
            split = self._split_after_backward(device, position, intervals, place, at_peak)
        else:
            split = self._split_in_model(device, position, intervals, place, at_peak)
        if not split.is_complete:
            return by_height.get(peak, split)
        by_height.pop(peak, None)
        by_height[peak] = split
        if len(by_height) > HEIGHTS:
            del by_height[next(iter(by_height))]
        return split

    def _workspaces_at(self, place: int, device: int, intervals: list[PhaseInterval], held: OwnedBytes) -> int:
        seen = self._workspaces_seen.get(device, {})
        before = self._workspaces_before.get(device, UNKNOWN)
        return workspaces_at(place, intervals, seen, before, held.workspaces) if seen else held.workspaces

    def _split_control_step(self, device: int, held: OwnedBytes, cut: Interval) -> CategoryBytes:
        """Return the breakdown at the peak of a control step, derived from the last step whose phases were read."""
        peak = cut.peak_allocated_bytes
        origin = self._peak_origin(device)
        other = self._ended[device][1].other if device in self._ended else UNKNOWN
        if origin is None or other == UNKNOWN or origin.held != held or self._evaluated:
            return split_with_rest(held, UNKNOWN, UNKNOWN, peak)
        behind = cut.allocated_bytes + origin.behind
        if peak == behind:
            return split_with_rest(held, origin.gradients_behind, origin.temporaries_behind, peak)
        base = held.lasting + other + origin.arrived
        at_forward = self._gradients_before_forwards[device][0]
        gradients = self._gradients_in(origin.phase, origin.forward, device, base + at_forward, peak)
        if peak < behind or gradients is None:
            return split_with_rest(held, UNKNOWN, UNKNOWN, peak)
        return split_with_rest(held, gradients, max(peak - base - gradients, UNKNOWN), peak)

    def _peak_origin(self, device: int) -> PeakOrigin | None:
        if device not in self._read:
            return None
        position, intervals, held, other_before, workspaces_before = self._read[device]
        allocated = allocated_before_forward(intervals, position)
        at_forward = next(iter(self._gradients_before_forwards.get(device, ())), None)
        if allocated is None or at_forward is None or other_before == UNKNOWN:
            return None
        if workspaces_before != held.workspaces:  # a new workspace would count as an activation in all later steps
            return None
        arrived = allocated - held.lasting - at_forward - other_before
        peaks = [interval.cuts[position].peak_allocated_bytes for interval in intervals]
        ahead = [place for place, one in enumerate(intervals) if one.phase in (FORWARD, BACKWARD)]
        highest = max(ahead, key=peaks.__getitem__)
        phase, forward = intervals[highest].phase, forward_of(intervals, highest)
        behind = after_backward(intervals)
        if not behind:
            return PeakOrigin(held, arrived, phase, forward, UNKNOWN, UNKNOWN, UNKNOWN)
        place = max(behind, key=peaks.__getitem__)
        split = self._split_after_backward(device, position, intervals, place, held)
        above_end = peaks[place] - intervals[-1].cuts[position].allocated_bytes
        return PeakOrigin(held, arrived, phase, forward, above_end, split.gradients, split.activations)

    def _split_after_backward(
        self, device: int, position: int, intervals: list[PhaseInterval], place: int, held: OwnedBytes
    ) -> CategoryBytes:
        """Return the breakdown at a peak after backward, when activations are gone."""
        peak = intervals[place].cuts[position].peak_allocated_bytes
        begin = intervals[place - 1].cuts[position].allocated_bytes if place else UNKNOWN
        before = self._before_forward.get(device)
        gradients: int | None = held.gradients
        state = 0
        if intervals[place].phase == OPTIMIZER:
            state = 0 if before is None else max(0, held.optimizer - before.optimizer)
        else:
            held = held if before is None else held._replace(optimizer=before.optimizer)
            gradients = None if self._backward is None else self._backward.behind(device)
        if gradients is None:
            return split_with_rest(held, UNKNOWN, UNKNOWN, peak)
        split = split_with_rest(held, gradients, 0, peak)
        # If more bytes were counted than are allocated, the rest is UNKNOWN, which is negative.
        temporaries = min(peak - begin - state, split.other) if begin != UNKNOWN else 0
        return split_with_rest(held, gradients, temporaries, peak) if temporaries > 0 else split

    def _split_in_model(
        self, device: int, position: int, intervals: list[PhaseInterval], place: int, held: OwnedBytes
    ) -> CategoryBytes:
        """Return the breakdown at a peak in forward or backward. New bytes that are not gradients are activations."""
        peak = intervals[place].cuts[position].peak_allocated_bytes
        before = self._before_forward.get(device)
        # The optimizer creates its state in its first step. An earlier peak does not include it.
        held = held if before is None else held._replace(optimizer=before.optimizer)
        allocated = allocated_before_forward(intervals, position)
        at_forward = next(iter(self._gradients_before_forwards.get(device, ())), None)
        if allocated is None or at_forward is None:
            return split_with_rest(held, UNKNOWN, UNKNOWN, peak)
        gradients = self._gradients_in(intervals[place].phase, forward_of(intervals, place), device, allocated, peak)
        if gradients is None:
            return split_with_rest(held, UNKNOWN, UNKNOWN, peak)
        begun_with = held if before is None else held._replace(workspaces=before.workspaces)
        if UNKNOWN in (held.workspaces, begun_with.workspaces):
            held = begun_with = held._replace(workspaces=UNKNOWN)
        others = allocated - begun_with.lasting - at_forward
        activations = peak - held.lasting - gradients - others
        return split_with_rest(held, gradients, activations if others >= 0 and activations >= 0 else UNKNOWN, peak)

    def _gradients_in(self, phase: int, forward: int, device: int, allocated: int, peak: int) -> int | None:
        """Return the bytes of gradients at the peak of this phase; None if unknown.

        forward     position in the step of the forward pass at the peak, or before it
        allocated   allocated bytes when the step's first forward pass began
        """
        if phase == BACKWARD:
            return None if self._backward is None else self._backward.at(device, peak - allocated, peak)
        before = self._gradients_before_forwards.get(device, [])
        return before[forward] if phase in (FORWARD, OTHER) and forward < len(before) else None

    def _count(self, device: int) -> OwnedBytes:
        held = count(self._optimizers, self._roots, device)
        return held if device == CPU else held._replace(workspaces=self._workspaces.bytes_on(device))
