"""Splits a device's allocated bytes into parameters, gradients, optimizer state, buffers, activations and the rest.

Parameters, gradients, optimizer state and buffers (:mod:`vramscope.memory.tensor_bytes`) and workspaces of cuBLAS
(:mod:`vramscope.memory.cublas_workspaces`) are counted in some of the steps (:class:`Budget`). Between two counts a step that
ends at the same number of allocated bytes has the same split; one that ends at another has the same counted bytes as long as
optimizers have as many parameters, gradients and states as they had, and PyTorch the same table of workspaces.

At the peak the gradients are in between (:mod:`vramscope.memory.gradient_peak`). Activations are then what was allocated
since the forward began and is not a gradient (temporaries of the running operation included). In the optimizer's step, and
between backward and it, activations are gone: what was allocated since that phase began and is no state are temporaries, of
``foreach`` or of clipping. *Other* is what was there before and none of the above (the batch, outputs still held). The
categories always add up to the allocated bytes they split. A workspace that is new in the interval of the peak counts as an
activation in that step, because it may be younger than the peak.

A step that is left alone (steps/clock.py) tells its peak and not the phase that it fell into. Where it is as high as one that
was split, it has that split; else it follows from the last step whose phases were read (:class:`PeakOrigin`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from vramscope.memory.category_arithmetic import (
    allocated_before_forward,
    at_end_split,
    behind_backward,
    forward_of,
    split_with_rest,
    workspaces_at,
)
from vramscope.memory.cublas_workspaces import CublasWorkspaces
from vramscope.memory.gradient_peak import BackwardPeaks
from vramscope.memory.peak_counters import Interval
from vramscope.memory.tensor_bytes import Counts, OwnedBytes, count, counts_of, parameters_of
from vramscope.protocol.series import CPU, UNKNOWN
from vramscope.steps.phase import BACKWARD, FORWARD, OPTIMIZER, OTHER
from vramscope.steps.records import CategoryBytes, PhaseInterval

if TYPE_CHECKING:
    import torch

FIRST_STEPS = frozenset((1, 2, 3, 5, 10, 20, 50, 100))
"""Steps that are always counted: in the first steps a training takes its shape."""
HEIGHTS = 32
"""Number of remembered peaks."""


class PeakOrigin(NamedTuple):
    """How one device came to its peaks in the last step whose phases were read."""

    held: OwnedBytes
    arrived: int
    """Bytes that are not counted and arrived between the end of the previous step and the first forward pass: mainly the
    batch."""
    phase: int
    """Forward or backward, whichever had the higher peak."""
    forward: int
    """Position of the forward pass at that peak, or before it, in the step."""
    behind: int
    """Height of the peak after backward, without activations, above the bytes at the step's end; -1: no such peak."""
    gradients_behind: int
    temporaries_behind: int


class Budget:
    """Lets something through as long as it takes at most ``fraction`` of the time that passes."""

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
    stretches: list[PhaseInterval]
    held: OwnedBytes
    """Counted bytes at its end."""
    other_before: int
    """Uncounted bytes before it."""
    workspaces_before: int
    """Workspaces before it."""


class LastSplit(NamedTuple):
    """A step and its breakdown. A later step through the same bytes has the same breakdown."""

    marks: list[tuple[int, list[Interval]]]
    splits: list[tuple[CategoryBytes, CategoryBytes]]
    ended: dict[int, tuple[int, CategoryBytes]]


class Categories:
    """Memory of steps by category (docs/anatomy.md). Everything runs on the training thread, where tensors stand still.

    optimizers, roots   live views (weak sets); nothing of theirs is kept
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
        """A phase begins; ``cuts`` are of the one that ended. Only a step that is sampled does anything here."""
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
                held = self._count(device)
                if device not in self._before_forward:
                    self._before_forward[device] = held
                    self._gradients_before_forwards[device] = []
                self._gradients_before_forwards[device].append(held.gradients)
        elif phase == BACKWARD:
            begun_with = {device: self._count(device).gradients for device in devices}
            self._backward.follow(begun_with, parameters_of(self._optimizers, self._roots))
        elif phase == OPTIMIZER:
            # One that was made before attach is known since its step began, and its state is not new.
            for device, before in self._before_forward.items():
                self._before_forward[device] = before._replace(optimizer=self._count(device).optimizer)
        self._spent_ns += self._now() - start

    def evaluated(self) -> None:
        """A step that is left alone evaluates, too: what it peaks with may be the evaluation's."""
        self._evaluated = True

    def end_step(
        self, stretches: list[PhaseInterval], devices: tuple[int, ...]
    ) -> list[tuple[CategoryBytes, CategoryBytes]]:
        """The splits at the step's end and at its peak, a device each."""
        start = self._now()
        if self._backward is not None and self._backward.following:
            self._backward.stop(devices, stretches[-1].cuts)
        due = self._count_budget.allows(start)
        counts, read = due or self._sampling, len(stretches) > 1
        marks = [(stretch.phase, stretch.cuts) for stretch in stretches]
        last = self._last_splits.get(read)
        if last is not None and last.marks == marks and not counts:
            self._step += 1
            self._began = self._evaluated = False
            self._ended = last.ended
            return last.splits
        splits, self._ended = [], dict(self._ended)
        for position, device in enumerate(devices or (CPU,)):
            allocated = stretches[-1].cuts[position].allocated_bytes if devices else UNKNOWN
            held = self._held(device, allocated, counts)
            if held is None:
                self._ended.pop(device, None)
                splits.append((CategoryBytes(), CategoryBytes()))
                continue
            at_end = at_end_split(held, allocated)
            at_peak = self._peak_split(device, position, stretches, held) if devices else CategoryBytes()
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
        self._workspaces_seen.clear()
        if devices and not counts and all(split.is_complete for pair in splits for split in pair):
            self._last_splits[read] = LastSplit(marks, splits, self._ended)
        return splits

    def _held(self, device: int, allocated: int, counts: bool) -> OwnedBytes | None:
        """Counts the bytes at the end of this step; None if it is unknown whether the last count is still right."""
        known = self._last.get(device)
        if counts or known is None:
            held = self._count(device)
            if known is None or held != known[1]:  # then what was none of it is another sum, too
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
        self, device: int, position: int, stretches: list[PhaseInterval], held: OwnedBytes
    ) -> CategoryBytes:
        """The split at the step's peak. A step as high as one that was split has its split."""
        stretches = [
            stretch for stretch in stretches if position < len(stretch.cuts)
        ]  # watched from within the step on
        place = max(range(len(stretches)), key=lambda one: stretches[one].cuts[position].peak_allocated_bytes)
        peak = stretches[place].cuts[position].peak_allocated_bytes
        by_height = self._by_height.setdefault(device, {})
        ended = self._ended.get(device)
        if len(stretches) > 1:
            other_before = UNKNOWN if ended is None else ended[1].other
            workspaces_before = self._workspaces_before.get(device, UNKNOWN)
            self._read[device] = ReadStep(position, stretches, held, other_before, workspaces_before)
            if self._sampling and self._backward is not None:
                self._backward.note(device, allocated_before_forward(stretches, position))
        at_peak = held._replace(workspaces=self._workspaces_at(place, device, stretches, held))
        if ended is not None and ended[0] == peak:  # from its begin on it only fell
            split = ended[1]
        elif len(stretches) == 1:
            return by_height.get(peak) or self._split_alone(device, held, stretches[0].cuts[position])
        elif place in behind_backward(stretches):
            split = self._split_behind(device, position, stretches, place, at_peak)
        else:
            split = self._split_ahead(device, position, stretches, place, at_peak)
        if not split.is_complete:
            return by_height.get(peak, split)
        by_height.pop(peak, None)
        by_height[peak] = split
        if len(by_height) > HEIGHTS:
            del by_height[next(iter(by_height))]
        return split

    def _workspaces_at(self, place: int, device: int, stretches: list[PhaseInterval], held: OwnedBytes) -> int:
        seen = self._workspaces_seen.get(device, {})
        before = self._workspaces_before.get(device, UNKNOWN)
        return workspaces_at(place, stretches, seen, before, held.workspaces) if seen else held.workspaces

    def _split_alone(self, device: int, held: OwnedBytes, cut: Interval) -> CategoryBytes:
        """Breakdown at the peak of a control step, after the last step whose phases were read."""
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
        position, stretches, held, other_before, workspaces_before = self._read[device]
        allocated = allocated_before_forward(stretches, position)
        at_forward = next(iter(self._gradients_before_forwards.get(device, ())), None)
        if allocated is None or at_forward is None or other_before == UNKNOWN:
            return None
        if workspaces_before != held.workspaces:  # a new one would count as activations of all later steps
            return None
        arrived = allocated - held.lasting - at_forward - other_before
        peaks = [stretch.cuts[position].peak_allocated_bytes for stretch in stretches]
        ahead = [place for place, one in enumerate(stretches) if one.phase in (FORWARD, BACKWARD)]
        highest = max(ahead, key=peaks.__getitem__)
        phase, forward = stretches[highest].phase, forward_of(stretches, highest)
        behind = behind_backward(stretches)
        if not behind:
            return PeakOrigin(held, arrived, phase, forward, UNKNOWN, UNKNOWN, UNKNOWN)
        place = max(behind, key=peaks.__getitem__)
        split = self._split_behind(device, position, stretches, place, held)
        above_end = peaks[place] - stretches[-1].cuts[position].allocated_bytes
        return PeakOrigin(held, arrived, phase, forward, above_end, split.gradients, split.activations)

    def _split_behind(
        self, device: int, position: int, stretches: list[PhaseInterval], place: int, held: OwnedBytes
    ) -> CategoryBytes:
        """Breakdown at a peak after backward, when activations are gone."""
        peak = stretches[place].cuts[position].peak_allocated_bytes
        begin = stretches[place - 1].cuts[position].allocated_bytes if place else UNKNOWN
        before = self._before_forward.get(device)
        gradients: int | None = held.gradients
        state = 0
        if stretches[place].phase == OPTIMIZER:
            state = 0 if before is None else max(0, held.optimizer - before.optimizer)
        else:
            held = held if before is None else held._replace(optimizer=before.optimizer)
            gradients = None if self._backward is None else self._backward.behind(device)
        if gradients is None:
            return split_with_rest(held, UNKNOWN, UNKNOWN, peak)
        split = split_with_rest(held, gradients, 0, peak)
        # Where more was counted than is allocated, the rest is UNKNOWN, which is below zero.
        temporaries = min(peak - begin - state, split.other) if begin != UNKNOWN else 0
        return split_with_rest(held, gradients, temporaries, peak) if temporaries > 0 else split

    def _split_ahead(
        self, device: int, position: int, stretches: list[PhaseInterval], place: int, held: OwnedBytes
    ) -> CategoryBytes:
        """Of a peak ahead of that: what came since the forward began, and is no gradient, are activations."""
        peak = stretches[place].cuts[position].peak_allocated_bytes
        before = self._before_forward.get(device)
        # The optimizer makes its state at its first step: until then the peak is without it.
        held = held if before is None else held._replace(optimizer=before.optimizer)
        allocated = allocated_before_forward(stretches, position)
        at_forward = next(iter(self._gradients_before_forwards.get(device, ())), None)
        if allocated is None or at_forward is None:
            return split_with_rest(held, UNKNOWN, UNKNOWN, peak)
        gradients = self._gradients_in(stretches[place].phase, forward_of(stretches, place), device, allocated, peak)
        if gradients is None:
            return split_with_rest(held, UNKNOWN, UNKNOWN, peak)
        begun_with = held if before is None else held._replace(workspaces=before.workspaces)
        if UNKNOWN in (held.workspaces, begun_with.workspaces):
            held = begun_with = held._replace(workspaces=UNKNOWN)
        others = allocated - begun_with.lasting - at_forward
        activations = peak - held.lasting - gradients - others
        return split_with_rest(held, gradients, activations if others >= 0 and activations >= 0 else UNKNOWN, peak)

    def _gradients_in(self, phase: int, forward: int, device: int, allocated: int, peak: int) -> int | None:
        """Gradients at the peak of this phase; None if unknown.

        forward     position of the forward pass at the peak, or before it, in the step
        allocated   bytes when the step's first forward pass began
        """
        if phase == BACKWARD:
            return None if self._backward is None else self._backward.at(device, peak - allocated, peak)
        before = self._gradients_before_forwards.get(device, [])
        return before[forward] if phase in (FORWARD, OTHER) and forward < len(before) else None

    def _count(self, device: int) -> OwnedBytes:
        held = count(self._optimizers, self._roots, device)
        return held if device == CPU else held._replace(workspaces=self._workspaces.bytes_on(device))
