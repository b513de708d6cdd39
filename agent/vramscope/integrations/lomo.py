"""LOMO and AdaLomo update each parameter within the backward, by hooks of their own, and have no ``step()``: a call of
``fused_backward`` is a step. They keep no gradients, and what AdaLomo keeps is in dicts of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.process.frames import locals_of

if TYPE_CHECKING:
    import torch

    from vramscope.steps.hooks import LoopHooks

PACKAGE: Final = "lomo_optim"
KINDS: Final = ("Lomo", "AdaLomo")
COPIES: Final = (2, 4)
"""in 32 bits at a time, of a parameter that AdaLomo updates: the update and a temporary of it; of one that has fewer bits gradient
and weight, too"""
MOST_FRAMES: Final = 16
"""between its call and the backward within it"""


class LomoFront:
    """In front of ``fused_backward`` of both, for one session."""

    def __init__(self, hooks: LoopHooks) -> None:
        self._hooks = hooks
        self._listens = False

    def listen(self) -> None:
        """The package may be there by now: at attach, and in backwards of the first step, which may be one of its own already."""
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
                self._hooks.fronts.put(kind, "fused_backward", fused_backward)

    def _over(self, optimizer: torch.optim.Optimizer) -> None:
        self._hooks.optimizers.add(optimizer)
        self._hooks.stepped(optimizer)


def is_its(optimizer: Any) -> bool:
    """Whether it is one of these."""
    return type(optimizer).__module__.partition(".")[0] == PACKAGE


def at_once_bytes(parameter: torch.Tensor) -> int:
    """What the update of one takes within the backward: its gradient and the next one's, and copies in 32 bits."""
    size = parameter.element_size()
    return int(parameter.numel() * (2 * size + COPIES[size < 4] * 4))


def state_of(optimizer: Any) -> Iterator[Any]:
    """The tensors that one of these keeps from step to step; nothing of any other."""
    if is_its(optimizer):
        for kept in vars(optimizer).values():
            if isinstance(kept, dict):
                yield from kept.values()


def _running_in(code: Any) -> Any:
    """Whose method this is, where it runs on this thread."""
    frame = sys._getframe(1)
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code is code:
            return locals_of(frame).get("self")
        frame = frame.f_back  # type: ignore[assignment]  # None at the outermost
    return None
