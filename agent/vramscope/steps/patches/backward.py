"""Functions in front of ``torch.autograd.backward`` and ``grad``: when a backward begins and ends, and what it walks."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.steps.patches.caught_errors import OF_MEMORY
from vramscope.steps.phase import BACKWARD, DATA, OTHER

if TYPE_CHECKING:
    from vramscope.steps.hook_interface import StepHooks

OUTSIDE: Final = -1
"""Autograd's answer outside of any backward pass."""


class BackwardPatch:
    """Patches of ``torch.autograd.backward`` and ``grad`` for one session. ``loss.backward()`` calls the former by name."""

    def __init__(self, hooks: StepHooks) -> None:
        self._hooks = hooks

    def install(self) -> None:
        import torch

        hooks, clock = self._hooks, self._hooks.clock
        graph_task = torch._C._current_graph_task_id
        enter = guarded("backward hook")(clock.enter)
        extensions = guarded("a framework's backward pass")(hooks.before_backward)
        search_caller = guarded("model hook")(hooks.search_called_model)
        end_step = guarded("the end of a step by hand")(hooks.end_step_by_hand)
        passes = hooks.error_passes
        walk, loss = guarded("graph watch")(self._before_walk), guarded("the loss")(self._before_backward)

        def before_backward(*args: Any, **kwargs: Any) -> bool:
            if graph_task() != OUTSIDE:  # reentrant checkpointing calls backward within backward
                return False
            extensions()
            end_step()
            if clock.watched and not clock.saw_forward and clock.phase in (DATA, OTHER):
                search_caller()
            enter(BACKWARD)
            if get_ident() == clock.thread:
                clock.batch.forwards = 0
            walk(args, kwargs, "tensors", 2)
            if hooks.loss is not None:
                loss(args, kwargs)
            return True

        def after_backward(is_outermost: bool, _: Any) -> None:
            if is_outermost:
                hooks.after_backward()

        def backward_failed(is_outermost: bool) -> None:
            error = sys.exc_info()[1]
            if is_outermost and isinstance(error, OF_MEMORY):
                passes(error)

        def before_grad(*args: Any, **kwargs: Any) -> None:
            if graph_task() == OUTSIDE:
                walk(args, kwargs, "outputs", 3)

        hooks.patches.watch(
            torch.autograd, "backward", before=before_backward, after=after_backward, failed=backward_failed
        )
        hooks.patches.watch(torch.autograd, "grad", before=before_grad)

    def _before_walk(self, args: tuple[Any, ...], kwargs: dict[str, Any], roots: str, retain_graph_at: int) -> None:
        """``roots``: name of the first argument. ``retain_graph_at``: position of retain_graph; create_graph follows it."""
        hooks = self._hooks
        clock, graphs, techniques = hooks.clock, hooks.graphs, hooks.techniques
        given = args[0] if args else kwargs.get(roots)
        if get_ident() != clock.thread and not clock.is_training_thread():
            clock.reads.another_thread_trains()
            return
        if clock.step == 0:
            hooks.in_first_step_backward(given)
        if graphs is not None:
            place = retain_graph_at
            retain = args[place] if len(args) > place else kwargs.get("retain_graph")
            create = args[place + 1] if len(args) > place + 1 else kwargs.get("create_graph")
            hooks.timed(graphs.before_walk, given, bool(retain), bool(create))
        if techniques is not None and techniques.reads_graphs:
            techniques.before_walk(given[0] if isinstance(given, (list, tuple)) and given else given)

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        clock, loss = self._hooks.clock, self._hooks.loss
        if loss is not None and (get_ident() == clock.thread or clock.is_training_thread()):
            clock.timed(loss.backward, args, kwargs)
