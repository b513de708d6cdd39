"""Steps of LOMO and AdaLomo. They update each parameter within backward and have no ``step()``: each ``fused_backward`` is one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.memory.lomo_state import PACKAGE
from vramscope.process.frames import locals_of

if TYPE_CHECKING:
    import torch

    from vramscope.steps.hooks import LoopHooks

KINDS: Final = ("Lomo", "AdaLomo")
MOST_FRAMES: Final = 16
"""Maximum number of frames between its call and the backward pass within it."""


class LomoSteps:
    """Reports each call of ``fused_backward`` as a step, for one session."""

    package = PACKAGE

    def __init__(self, hooks: LoopHooks) -> None:
        self._hooks = hooks
        self._listens = False

    def listen(self) -> None:
        """Watch the package once it is imported: at attach, or before a backward pass, which may be one of its own already."""
        package = sys.modules.get(PACKAGE)
        if package is None or self._listens:
            return
        self._listens = True
        is_over = guarded("LOMO's step")(self._over)

        def fused_backward(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            answer = original(optimizer, *args, **kwargs)
            is_over(optimizer)
            return answer

        for name in KINDS:
            kind = getattr(package, name, None)
            if kind is not None and "fused_backward" in vars(kind):
                running = _running_in(kind.fused_backward.__code__)
                if running is not None:
                    self._hooks.steps_in_this_backward(running)
                self._hooks.patches.wrap(kind, "fused_backward", fused_backward)

    def found_root(self, module: torch.nn.Module) -> None:
        """Nothing to do: LOMO wraps no module."""

    def takes_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """LOMO has no ``step`` that PyTorch's hooks could report."""
        return False

    def _over(self, optimizer: torch.optim.Optimizer) -> None:
        self._hooks.optimizers.add(optimizer)
        self._hooks.stepped(optimizer)


def _running_in(code: Any) -> Any:
    """The object whose method runs on this thread; None if it does not run."""
    frame = sys._getframe(1)
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code is code:
            return locals_of(frame).get("self")
        frame = frame.f_back  # type: ignore[assignment]  # None at the outermost
    return None
