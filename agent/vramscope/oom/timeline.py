"""Timeline of an out-of-memory record: samples, steps, phase and inputs up to the error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from vramscope.memory.category_arithmetic import allocated_before_forward
from vramscope.oom.error_stack import has_graph, is_own, runs_optimizer, wants_gradients
from vramscope.oom.recent_samples import KEPT_NS, RecentSamples
from vramscope.oom.record_sections import TimelineSection
from vramscope.protocol import messages, series
from vramscope.sampling.step_blocks import step_row
from vramscope.steps.other_arguments import NONE
from vramscope.steps.phase import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

    from vramscope.memory.peak_counters import Interval
    from vramscope.oom.trigger import OomTrigger
    from vramscope.steps.clock import StepClock


class Timeline:
    """Collects what was sampled before an error. One per session.

    roots    models that train, as far as they are known
    losses   columns of the loss since a time
    """

    def __init__(
        self,
        clock: StepClock,
        recent: RecentSamples,
        roots: Iterable[torch.nn.Module],
        losses: Callable[[int], dict[str, bytes]],
    ) -> None:
        self._clock, self._recent = clock, recent
        self._roots, self._losses = roots, losses

    def section(self, trigger: OomTrigger, now_ns: int, kept: Sequence[messages.Leak]) -> TimelineSection:
        """Samples, steps and inputs up to the error.

        kept   leaks by exceptions
        """
        clock, device = self._clock, trigger.device
        sampled = series.CPU if device is None else device
        updated = self._has_updated(trigger)
        shape, shape_before = self._shapes(updated)
        return {
            "phase": self.phase(trigger),
            "forwards": clock.batch.forwards if clock.phase == FORWARD else 0,
            "evaluates": clock.batch.evaluates and clock.phase == FORWARD,
            "counters_before": {
                name: value for name, value in self._recent.newest(sampled).items() if name in series.SAMPLES
            },
            "peak_allocated_bytes": max([cut.peak_allocated_bytes for cut in self.cuts(device)], default=None),
            "allocated_before_forward_bytes": None if updated else self._before_forward(self._position(device), kept),
            "before_forward_in_last_step_bytes": self._before_forward_in_last_step(device),
            "allocated_before_update_bytes": None if updated else self._before_update(device),
            "samples": self._recent.columns(sampled, now_ns),
            "losses": self._losses(now_ns - KEPT_NS),
            "last_step": self._last_step(device),
            "steps": {} if device is None else self._recent.steps.columns(device, clock.finished.untaken()),
            "batch_size": trigger.batch_size or (clock.batch.rows if clock.phase in (BACKWARD, OPTIMIZER) else None),
            "input_shape": shape,
            "input_shape_before": shape_before,
            "input_sizes": self._sizes(device) if shape else [],
        }

    def _position(self, device: int | None) -> int | None:
        """Position of the device among those with counters."""
        return next((n for n, c in enumerate(self._clock.counters) if c.device == device), None)

    def cuts(self, device: int | None) -> list[Interval]:
        """Readings of the device in the current step."""
        position = self._position(device)
        return [one.cuts[position] for one in self._clock.cuts() if position is not None and position < len(one.cuts)]

    def phase(self, trigger: OomTrigger) -> str | None:
        """Phase by the clock; by the stack in the forward of a model that was not observed yet. None for other threads."""
        clock = self._clock
        if not clock.watched or trigger.thread is not None:
            return None
        if clock.phase in (OTHER, DATA) and trigger.running is not None and node() is None:
            return "forward" if wants_gradients(trigger.frames) else "eval"
        if clock.phase in (OTHER, DATA) and self._is_in_unknown_forward(trigger):
            return "forward"
        if self._has_updated(trigger):
            return series.PHASES[OTHER]
        if clock.phase == EVAL and not clock.step and wants_gradients(trigger.frames) and self._has_unknown_training():
            return "forward"
        return series.PHASES[clock.phase]

    def _has_updated(self, trigger: OomTrigger) -> bool:
        """Whether the last of several optimizers has stepped, and the next step has not begun."""
        return (
            self._clock.phase == OPTIMIZER
            and trigger.is_at_request
            and trigger.thread is None
            and not any(map(runs_optimizer, trigger.frames))
        )

    def _is_in_unknown_forward(self, trigger: OomTrigger) -> bool:
        """Whether the first forward of an unknown model runs, and no backward has: a variable has a graph."""
        first = not self._clock.step and not self._clock.micro_steps and node() is None
        return first and any(has_graph(frame) for frame in trigger.frames if is_own(frame.f_code.co_filename))

    def _has_unknown_training(self) -> bool:
        """Whether a model trains that was not observed yet. In the first step a reference model may be seen before it."""
        known = {id(root) for root in self._roots}
        return any(
            root.training and id(root) not in known and any(one.requires_grad for one in root.parameters())
            for root in outermost_modules()
        )

    def _last_step(self, device: int | None) -> dict[str, int]:
        newest = self._clock.finished.newest
        return {} if newest is None or device is None else step_row(newest, series.UNKNOWN, device)

    def _before_forward(self, position: int | None, kept: Sequence[messages.Leak]) -> int | None:
        """Allocated bytes before the forward."""
        intervals = [s for s in self._clock.cuts() if position is not None and position < len(s.cuts)]
        if position is None or not intervals:
            return None
        if self._clock.phase == FORWARD:
            # A failed attempt had the same phase. What it left was there before the running attempt.
            return intervals[-1].cuts[position].allocated_bytes + sum(leak.held_bytes for leak in kept)
        return allocated_before_forward(intervals, position)

    def _before_forward_in_last_step(self, device: int | None) -> int | None:
        """Allocated bytes when the first forward of the last complete step began."""
        newest = self._clock.finished.newest
        if newest is None or device not in newest.devices:
            return None
        position = newest.devices.index(device)
        intervals = [one for one in newest.intervals if position < len(one.cuts)]
        return allocated_before_forward(intervals, position)

    def _before_update(self, device: int | None) -> int | None:
        """Allocated bytes when the running update began."""
        intervals, position = self._clock.cuts(), self._position(device)
        if self._clock.phase != OPTIMIZER or not intervals or position is None or position >= len(intervals[-1].cuts):
            return None
        return intervals[-1].cuts[position].allocated_bytes

    def _shapes(self, updated: bool) -> tuple[list[int], list[int]]:
        """Input shapes of the training model in this step, and the largest in the last one; empty where one is not known.

        Between two steps only the second is known. Neither says what a step needs if its other arguments have become larger.
        """
        clock = self._clock
        if clock.batch.latest is None or (clock.phase not in (DATA, FORWARD, BACKWARD) and not updated):
            return [], []
        root, shape = clock.batch.latest
        before = clock.batch.largest_before.get(root, ())
        if clock.phase == DATA or updated:
            return [], list(before)
        if not clock.batch.latest_beside.is_covered_by(clock.batch.beside_before.get(root, NONE)):
            return [], []
        return (list(shape), list(before)) if len(shape) == len(before) else ([], [])

    def _sizes(self, device: int | None) -> list[tuple[list[int], int]]:
        """Memory of earlier steps whose inputs had other sizes."""
        clock = self._clock
        if clock.batch.latest is None or device is None:
            return []
        more, beside = clock.finished.untaken(), clock.batch.latest_beside
        return self._recent.steps.sizes(device, clock.batch.latest[0], more, beside)


def node() -> str | None:
    """Autograd node that runs on this thread."""
    torch = sys.modules.get("torch")
    current = getattr(getattr(torch, "_C", None), "_current_autograd_node", None)
    node = None if current is None else current()
    return None if node is None else str(type(node).name(node))[:4096]  # a custom Function may have set ``name``
