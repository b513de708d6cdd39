"""Live blocks of PyTorch's CUDA allocator after a step: a cheap sign whether a scan could find anything.

Every leak of GPU memory leaves one block more, or a larger one, after some steps. The counters are those of the reading that
ends a step. A leak in host memory shows in the C allocator, or in the pages of the process: shared and pinned memory, and
memory of another allocator. Both are read when a scan is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vramscope.leaks.memory_after_step import ProcessHeap
from vramscope.leaks.policy import POLICY
from vramscope.memory.host import Host
from vramscope.protocol.series import UNKNOWN

if TYPE_CHECKING:
    from vramscope.leaks.autograd.live_graphs import OutputGraphs
    from vramscope.leaks.graph_ages import GraphAges
    from vramscope.leaks.loop_shape import LoopShape
    from vramscope.leaks.registry import FindingRegistry
    from vramscope.steps.clock import StepClock

FIRST_COMPARED_STEP: Final = 2
"""Step with whose end memory is compared before the first scan."""
NOT_NEEDED: Final = "no scan was needed: GPU memory after step {step:,} was no higher than after the second step"
"""Reason in a report without a scan. Steps in between may have ended with more."""
HOST_BYTES: Final = 256 * 1024
"""Rise of host memory that is noise. A batch of the agent's own that is on its way to the server takes up to 210 KiB."""
PAGE_BYTES: Final = 4 * 1024**2
"""Rise of the process's pages that is noise: freed heaps keep theirs, and threads touch their stacks."""
HOST_BYTES_PER_STEP: Final = 1024
"""Rise in each step that is noise too. Python and the agent itself take up to 0.4 KiB."""


class _Live(NamedTuple):
    step: int
    blocks: int
    allocated_bytes: int
    host_bytes: int
    """Handed out by the C allocator."""
    page_bytes: int
    """Resident and backed by no file."""

    def lowered_to(self, now: _Live) -> _Live:
        """The smaller of each amount. Where the host's memory was unknown or has fallen, its rise is counted from now."""
        blocks, allocated = min(self.blocks, now.blocks), min(self.allocated_bytes, now.allocated_bytes)
        pages = now.page_bytes if self.page_bytes == UNKNOWN else min(self.page_bytes, now.page_bytes)
        if self.host_bytes == UNKNOWN or UNKNOWN != now.host_bytes < self.host_bytes:
            return _Live(now.step, blocks, allocated, now.host_bytes, pages)
        return _Live(self.step, blocks, allocated, self.host_bytes, pages)


def _rise(before: int, now: int) -> int:
    return 0 if UNKNOWN in (before, now) else now - before


class LiveBlocks:
    """Compares memory after a step with memory after the last scan that found nothing, or after the second step."""

    def __init__(self, clock: StepClock, loop: LoopShape) -> None:
        self._clock, self._loop = clock, loop
        self._host = Host()
        self._before: _Live | None = None
        self._steps = 0
        self._was_scanned = self._scan_found_nothing = False
        self.waits_for_forward = False
        """True until the next forward shows whether the first scan is needed."""

    @property
    def is_unscanned(self) -> bool:
        """True until the first scan."""
        return not self._was_scanned

    def training_begins(self) -> None:
        """Compare memory after the training's own steps. A scan of what ran before says nothing about them."""
        if self._was_scanned:
            self._before, self._steps = None, 0
            self._was_scanned = self._scan_found_nothing = False

    def scanned(self, iteration: int, *, found_nothing: bool) -> None:
        """A scan has ended. ``found_nothing``: it was complete, and no holder is reported or suspected."""
        self._before, self._was_scanned = None, True
        self._scan_found_nothing = found_nothing and iteration >= POLICY.always_scan_until

    def end_step(self) -> None:
        """A step has ended. Costs 0.1 µs, and up to 0.1 ms in the second step and in the first one after a scan."""
        self._steps += 1
        is_first = not self._was_scanned and self._steps == FIRST_COMPARED_STEP
        if is_first or (self._scan_found_nothing and self._before is None):
            self._before = self._live()

    def need_scan(self, ages: GraphAges, registry: FindingRegistry, outputs: OutputGraphs) -> bool:
        """Return whether a scan that is due now could find anything. Costs up to 0.1 ms.

        Before the first scan, graphs that no backward pass walks are ruled out too. Memory after a step does not show them, and
        finding them takes a scan. So does a tensor that each step retains until the next: ``graph_is_retained`` shows it.
        """
        is_first = not self._was_scanned
        if ages.kept_iterations or registry.has_findings or self._loop.has_retired:
            return True
        if is_first and (outputs.unwalked.were_seen or not outputs.has_roots):
            return True
        if not self._is_unchanged():
            return True
        self.waits_for_forward = is_first
        return False

    def graph_is_retained(self, graphs: int, registry: FindingRegistry) -> bool:
        """Return whether the first scan, which seemed unnecessary, is needed. The next step's forward pass begins.

        graphs   live graphs of earlier steps. A variable of the step that has ended retains one
        """
        waited, self.waits_for_forward = self.waits_for_forward, False
        if waited and not graphs:
            registry.scanned(0.0, 0, "")
            registry.send(NOT_NEEDED.format(step=self._clock.step))
        return waited and graphs > 0

    def _is_unchanged(self) -> bool:
        """True if memory has not risen since the last scan, which found nothing. Costs up to 0.1 ms.

        Before the first scan it is compared with the end of the second step, when gradients and optimizer state exist. Where
        memory has fallen since, the lower amount is compared from now on: a collection of older garbage must not hide a rise.
        """
        before, now = self._before, self._live()
        if before is None or now is None:
            return False
        is_unchanged = (
            now.blocks <= before.blocks
            and now.allocated_bytes <= before.allocated_bytes
            and _rise(before.host_bytes, now.host_bytes) <= HOST_BYTES + HOST_BYTES_PER_STEP * (now.step - before.step)
            and _rise(before.page_bytes, now.page_bytes) <= PAGE_BYTES
        )
        if is_unchanged:
            self._before = before.lowered_to(now)
        return is_unchanged

    def _live(self) -> _Live | None:
        """Memory in use after the step that has just ended, on all devices; None where no device is read."""
        readings = [counter.newest for counter in self._clock.counters]
        if not readings:
            return None
        return _Live(
            self._clock.step,
            sum(stats["allocation"]["all"]["current"] for stats in readings),
            sum(stats["allocated_bytes"]["all"]["current"] for stats in readings),
            # A recording takes host memory of its own.
            UNKNOWN if self._clock.listener_needs_detail else ProcessHeap().used_bytes(),
            UNKNOWN if self._clock.listener_needs_detail else self._host.unfiled_bytes(),
        )
