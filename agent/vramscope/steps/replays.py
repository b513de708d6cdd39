"""A function in front of ``torch.cuda.CUDAGraph.replay``: where a whole step is a replay nothing is heard of it, which is said."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramscope.notice import Notice
    from vramscope.steps.loop import LoopHooks

UNSEEN: Final = (
    "CUDA graphs are replayed and no steps are seen, as what runs in a graph calls no hook: say session.step() after each replay "
    "that is a step (session = agent.attach(...)), and its peak and its time are told."
)
REPLAYS: Final = 200
"""with no step between them: the parts of a compiled model are replays too, some dozens a step"""
SECONDS: Final = 10.0
"""that these must have taken"""


class ReplayFront:
    """For one session. 0.3 µs a replay; ``notice`` is given once."""

    def __init__(self, hooks: LoopHooks, notice: Notice) -> None:
        self._hooks = hooks
        self._notice = notice
        self._step = -1
        self._replays = 0
        self._since_s = 0.0
        self._told = False

    def install(self) -> None:
        import torch

        graphs = getattr(torch.cuda, "CUDAGraph", None)
        if not hasattr(graphs, "replay"):
            return
        heard = guarded("the hook of CUDA graphs")(self._replayed)

        def replay(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            heard()
            return original(*args, **kwargs)

        self._hooks.fronts.put(graphs, "replay", replay)

    def _replayed(self) -> None:
        step = self._hooks.clock.step
        if step != self._step:
            self._step, self._replays, self._since_s = step, 0, time.monotonic()
        self._replays += 1
        if self._replays >= REPLAYS and not self._told and time.monotonic() - self._since_s >= SECONDS:
            self._told = True
            self._notice.tell()
