"""Watches ``torch.cuda.CUDAGraph.replay``: a step that is only a replay is invisible, and a notice says so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.memory.unified_memory import CAPTURES
from vramscope.steps.phase import BACKWARD, EVAL, FORWARD

if TYPE_CHECKING:
    from vramscope.process.notices import Notice
    from vramscope.steps.hook_interface import StepHooks

UNSEEN: Final = (
    "CUDA graphs are replayed and no step has ended since, as what runs in a graph calls no hook. Where a replay is a step, say "
    "session.step() after each replay (session = agent.attach(...)), and its peak and time are recorded."
)
REPLAYS: Final = 200
SECONDS: Final = 10.0
"""Minimum time that the replays must have taken."""
WITHIN: Final = frozenset((FORWARD, BACKWARD, EVAL))
"""Phases in which a replay is a part of a model, a compiled one for example."""


class ReplayPatch:
    """Counts replays of one session, 0.3 µs each. ``notice`` is reported once, and never if a step has ended since the
    first replay."""

    def __init__(self, hooks: StepHooks, notice: Notice) -> None:
        self._hooks = hooks
        self._notice = notice
        self._step: int | None = None
        self._replays = 0
        self._since_s = 0.0
        self._is_over = False

    def install(self) -> None:
        import torch

        graphs = getattr(torch.cuda, "CUDAGraph", None)
        if not hasattr(graphs, "replay"):
            return
        hook = guarded("the hook of CUDA graphs")(self._replayed)
        self._hooks.patches.watch(graphs, "replay", before=hook)
        begin, end = (guarded("the hook of CUDA graphs")(hook) for hook in (CAPTURES.begin, CAPTURES.end))
        self._hooks.patches.watch(graphs, "capture_begin", before=begin, failed=end, pausable=False)
        self._hooks.patches.watch(graphs, "capture_end", before=_nothing, after=end, failed=end, pausable=False)

    def _replayed(self, *_: Any) -> None:
        clock = self._hooks.clock
        if self._is_over or clock.phase in WITHIN:
            return
        if self._step is None:
            self._step, self._since_s = clock.step, time.monotonic()
        self._replays += 1
        if clock.step != self._step:
            self._is_over = True
        elif self._replays >= REPLAYS and time.monotonic() - self._since_s >= SECONDS:
            self._is_over = True
            self._notice.report()


def _nothing(*_: Any) -> None:
    return None
