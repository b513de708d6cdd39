"""Figures of findings at the end of a run.

The last scan may be many steps old. Memory after each step is measured in every step, and what it rose by since the scan belongs to
the findings that grow, if it fits their growth. A reference cycle has no steady growth: what memory rose or fell by belongs to it
if nothing else that grows was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from vramscope.leaks.policy import POLICY
from vramscope.protocol import messages
from vramscope.protocol.series import UNKNOWN

if TYPE_CHECKING:
    from vramscope.steps.records import PhaseInterval

DOUBT: Final = 0.25
"""Share by which the rise of memory may differ from the growth of the findings."""
TENSORS_AT_ONCE: Final = 2
"""Tensors that a container may get together, so that it gets none for as many times as long."""
CHANGES: Final = ("growing", "tensor-growth", "cycle")
"""Kinds whose bytes change from step to step."""
BY_MEMORY: Final = (
    "Estimated from the memory after each step: its share of the run's highest peak. Nothing else that grows was found."
)


class MemorySinceScan:
    """Memory after each step since the last scan, and the peaks beside it."""

    def __init__(self) -> None:
        self._newest = self._at_scan = UNKNOWN
        self.steps = self.scan_step = 0
        """Steps since the last scan, and its step."""
        self.peak_bytes = UNKNOWN
        """Highest peak of the steps that were added."""
        self.work_bytes = 0
        """Most by which a step's peak exceeded the memory before and after it."""

    def add(self, after_step_bytes: int, intervals: Sequence[PhaseInterval]) -> None:
        """A step has ended. About 2 µs."""
        before, self._newest = self._newest, after_step_bytes
        self.steps += 1
        if not intervals or len(intervals[-1].cuts) != 1:
            return  # peaks of several devices cannot be added
        peak = max([interval.cuts[0].peak_allocated_bytes for interval in intervals if interval.cuts])
        self.peak_bytes = max(self.peak_bytes, peak)
        self.work_bytes = max(self.work_bytes, peak - max(before, after_step_bytes))

    def scanned(self, step: int) -> None:
        """A scan after this step has measured the findings."""
        self._at_scan, self.steps, self.scan_step = self._newest, 0, step

    @property
    def risen_bytes(self) -> int | None:
        """Rise of the memory after a step since the last scan; None if unknown."""
        known = self._at_scan != UNKNOWN and self._newest != UNKNOWN
        return self._newest - self._at_scan if known else None

    def avoidable_bytes(self, held_bytes: int) -> int | None:
        """Bytes by which the highest peak falls without what was held at the last scan; None if unknown."""
        if self.peak_bytes == UNKNOWN or self._at_scan == UNKNOWN:
            return None
        return max(0, self.peak_bytes - self.work_bytes - (self._at_scan - held_bytes))


def has_gone_on(growing: Sequence[messages.Leak], memory: MemorySinceScan, at_once: Sequence[float] = ()) -> bool:
    """Whether memory rose since the last scan as fast as what grew at it. True if too few steps ended or its rise is unknown.

    What gets one tensor every eight steps, at each checkpoint, say, does not rise in four.

    at_once   tensors that each of them gets together, if known; 0: unknown
    """
    together = [max(TENSORS_AT_ONCE, one) for one in at_once] or [TENSORS_AT_ONCE] * len(growing)
    on_card = [(leak, times) for leak, times in zip(growing, together, strict=True) if leak.peak_effect_bytes]
    expected = sum(max(0.0, leak.growth_bytes_per_step or 0.0) for leak, _ in on_card)
    risen = memory.risen_bytes
    steps = [_steps_for_more(leak, times) for leak, times in on_card]
    if risen is None or memory.steps < max([POLICY.baseline_window, *steps]):
        return True
    to_come = sum(_bytes_each(leak) * times for leak, times in on_card if times > TENSORS_AT_ONCE)
    return risen + to_come >= (1 - DOUBT) * expected * memory.steps


def _bytes_each(leak: messages.Leak) -> float:
    return leak.held_bytes / max(1, leak.count)


def _steps_for_more(leak: messages.Leak, tensors: float) -> float:
    """Steps in which a holder that is growing as before must have got at least this number of tensors."""
    growth = leak.growth_bytes_per_step or 0.0
    return tensors * _bytes_each(leak) / growth if growth > 0 else 0.0


def at_end(leaks: Sequence[messages.Leak], memory: MemorySinceScan, step: int) -> list[messages.Leak]:
    """Findings with the figures of the end; the same list if memory does not tell them."""
    changing = [
        leak
        for leak in leaks
        if leak.kind in CHANGES
        and leak.emptied_after is None
        and leak.per == "step"
        and leak.peak_effect_bytes  # peaks are those of the device, not of host memory
    ]
    risen = memory.risen_bytes
    if risen is None or not changing or any(leak.last_step < memory.scan_step for leak in changing):
        return list(leaks)
    if len(changing) == 1 and changing[0].kind == "cycle":
        shares = [1.0]
    else:
        growth = [max(0.0, leak.growth_bytes_per_step or 0.0) for leak in changing]
        expected = sum(growth) * memory.steps
        if risen <= 0 or not expected or abs(expected - risen) > DOUBT * risen:
            return list(leaks)
        shares = [one / sum(growth) for one in growth]
    found = dict(zip(map(id, changing), shares, strict=True))
    return [_moved(leak, risen * found[id(leak)], memory, step) if id(leak) in found else leak for leak in leaks]


def _moved(leak: messages.Leak, risen: float, memory: MemorySinceScan, step: int) -> messages.Leak:
    held = max(0, leak.held_bytes + round(risen))
    if leak.full_bytes is not None:
        held = min(held, leak.full_bytes)
    factor = held / leak.held_bytes if leak.held_bytes else 1.0
    effect, words = leak.peak_effect_bytes, leak.peak_effect
    if leak.kind == "cycle":
        at_peak = memory.avoidable_bytes(leak.held_bytes)
        if at_peak is not None:
            effect, words = at_peak, BY_MEMORY
    elif effect is not None:
        effect = round(effect * factor)
    return msgspec.structs.replace(
        leak,
        count=round(leak.count * factor),
        last_step=step,
        held_bytes=held,
        exclusive_bytes=round(leak.exclusive_bytes * factor),
        node_bytes=round(leak.node_bytes * factor),
        peak_effect_bytes=effect,
        peak_effect=words,
    )
