"""Outputs that an evaluation without gradients accumulates on the device until its end: a list, or a concatenated tensor.

They exist once per evaluation, and no training step sees them. So two scans run within one evaluation, in its middle and at its
end, if an earlier one needed more memory than the training steps (otherwise freeing them saves nothing). A holder that grew with
the batches, by as many rows with each, was accumulated there. (A batch of longer texts has as many rows as any other.)

The unit is a batch of a loader; without a loader it is a call of a model. Where the end is not signalled, the scan runs before
the last batch, when as many have passed as in the evaluation before.

What is collected without gradients may be data for the steps that follow: activations, pseudo labels, the moves of a policy. Then
most of it stays when the collecting ends, in another form perhaps, and it is not reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.holders.key import HolderKey
from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.scan_context import iterations_since
from vramscope.steps.phase import EVAL

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval


class Middle(NamedTuple):
    """Rows of each holder in the middle of an evaluation."""

    done: int
    rows: dict[HolderKey, int]


class EvaluationAccumulation:
    """State from evaluation to evaluation. It keeps no tensor."""

    def __init__(self) -> None:
        self.batches = 0
        """Finished batches of loaders in the current evaluation."""
        self.calls = 0
        """Calls of models in it, including one that is about to begin."""
        self.may_scan = False
        """True where an evaluation needed more memory than a step, and more scans are needed."""
        self.reported: set[HolderKey] = set()
        """Holders that were found to accumulate. In steps they show what an evaluation left behind."""
        self._done_before = 0
        """Batches of the previous evaluation."""
        self._ends_are_known = self._matters = self._on_device = False
        self._middle: Middle | None = None
        self._scans = self._pairs = 0
        self._left_bytes = 0
        """Bytes by which memory rose over the step with the newest evaluation."""

    @property
    def done(self) -> int:
        """Batches, or calls where no loader is used."""
        return self.batches or self.calls - 1

    @property
    def wants_scan(self) -> bool:
        """True in the middle, or before the last batch as far as is known. Asked after each batch while ``may_scan``."""
        if self._middle is None:
            return self.done == max(1, self._done_before // 2)
        return not self._ends_are_known and self.done == self._done_before

    def has_ended(self) -> bool:
        """Note that a loader ended in an evaluation. True where a scan should follow."""
        self._ends_are_known = True
        return self.may_scan and self._middle is not None and self.done > self._middle.done

    def end_step(self, clock: StepClock, intervals: Sequence[PhaseInterval]) -> None:
        """Note whether the evaluation in the step that ended needed more memory than the step before."""
        done, self.batches, self.calls = self.done, 0, 0
        self._middle = None
        if done:
            self._done_before = done
            self._on_device = bool(clock.counters)
            self._left_bytes = (
                0
                if clock.finished.newest is None
                else _bytes_after(intervals) - _bytes_after(clock.finished.newest.intervals)
            )
            self._matters = self._matters or _needs_more(clock, intervals)
            left = self._pairs < POLICY.evaluation_scan_pairs and self._scans < POLICY.evaluation_scans
            self.may_scan = self._matters and left

    def accumulating(
        self, groups: Sequence[HeldMemory], least_bytes: int, live_bytes: int, in_steps: Collection[HolderKey]
    ) -> Iterator[HeldMemory]:
        """Holders of ``least_bytes`` that accumulate, at the second scan of a pair. On the CPU, where peaks are unknown, they must
        have half of all live bytes.

        in_steps   holders that the training fills
        """
        self._scans += 1
        if not self._on_device:
            least_bytes = max(least_bytes, int(POLICY.evaluation_live_share * live_bytes))
        candidates = [
            group
            for group in groups
            if group.holder.named
            and not group.graphs
            and group.holder.key not in in_steps
            and not (self._on_device and group.on_cpu)  # the advice is to move them there
        ]
        if self._middle is None:
            self._middle = Middle(self.done, {group.holder.key: group.rows for group in candidates})
            return
        middle, self._middle = self._middle, None
        self._pairs += 1
        self.may_scan = False  # in this evaluation
        for group in candidates:
            then = middle.rows.get(group.holder.key, 0)
            grown = then and group.rows >= POLICY.evaluation_growth_share * then * self.done / middle.done
            is_left = self._left_bytes >= POLICY.emptied_share * group.held_bytes
            if grown and group.held_bytes >= least_bytes and not is_left:
                self.reported.add(group.holder.key)
                yield group


def _needs_more(clock: StepClock, intervals: Sequence[PhaseInterval]) -> bool:
    """True where the evaluation in this step had a higher peak than the step before, or where no peaks are counted."""
    if clock.finished.newest is None:
        return False
    evaluations = [interval for interval in intervals if interval.phase == EVAL]
    devices = range(len(clock.counters))
    return not devices or any(_peak(evaluations, at) > _peak(clock.finished.newest.intervals, at) for at in devices)


def _bytes_after(intervals: Sequence[PhaseInterval]) -> int:
    """Bytes allocated after a step on all devices; 0 where they are not counted."""
    return sum(cut.allocated_bytes for cut in intervals[-1].cuts) if intervals else 0


def _peak(intervals: Sequence[PhaseInterval], at: int) -> int:
    """Peak of allocated bytes on the device at that position."""
    return max((interval.cuts[at].peak_allocated_bytes for interval in intervals if at < len(interval.cuts)), default=0)


def batches_of(group: HeldMemory, count: int, boundaries: Sequence[int]) -> float:
    """Number of evaluation batches in which these graphs were added; usually one each. (Between two evaluations lie training
    steps; an image can take many calls of the model.)"""
    births = group.births
    span = iterations_since(births[0], boundaries) - iterations_since(births[-1], boundaries)
    if count < 2 or span < count or births[0] < boundaries[0]:
        return count
    return span * count / (count - 1)
