"""What only the stack tells a hook: the error that ends a forward, and whether one step runs within another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def failed_with(module: torch.nn.Module) -> BaseException | None:
    """The error with which this module's forward ends, from its hook; None: it gave back None, whatever is handled around it."""
    error = sys.exc_info()[1]
    caught = None if error is None or error.__traceback__ is None else error.__traceback__.tb_frame
    frame = sys._getframe(1)
    while caught is not None and frame is not None:
        if frame is caught:
            return error if frame.f_locals.get("self") is module else None
        frame = frame.f_back  # type: ignore[assignment]  # None at the outermost
    return None


def steps_within_its_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step that ends was called by another of the same optimizer: ``super().step()`` in a subclass. From its hook.

    PyTorch puts its hooks around the step of each class that was instantiated, so that one step is told twice. Some 2 µs.
    """
    file = sys.modules["torch.optim.optimizer"].__file__
    frame, steps = sys._getframe(1), 0
    while frame is not None and steps < 2:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == file:
            steps += frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]  # None at the outermost
    return steps == 2
