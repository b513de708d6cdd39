"""Watches the DataLoader's ``__next__`` (private): data is being waited for, or there is no more of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded
from vramscope.steps.patches.caught_errors import OF_MEMORY
from vramscope.steps.phase import DATA, EVAL

if TYPE_CHECKING:
    from vramscope.steps.hook_interface import StepHooks


class LoaderPatch:
    """Watches all loaders of the process, for one session. Does nothing if PyTorch has no such iterator."""

    def __init__(self, hooks: StepHooks) -> None:
        self._hooks = hooks
        self.batches = 0
        """Number of batches requested so far."""
        self.batch_size: int | None = None
        """Batch size of the loader that the training asked last; None if its sampler has none."""

    def install(self) -> None:
        from torch.utils.data import dataloader

        iterator = getattr(dataloader, "_BaseDataLoaderIter", None)
        if iterator is None:
            return
        ended = guarded("data hook")(self._ended)
        passes = self._hooks.error_passes

        @guarded("data hook")
        def asked(iterator: Any) -> Any:
            self._asked(iterator)
            return iterator

        @guarded("data hook")
        def failed(iterator: Any | None) -> None:
            error = sys.exc_info()[1]
            if iterator is None:
                return  # the call began in a plain step
            if isinstance(error, StopIteration):
                ended(getattr(iterator, "_num_yielded", 0))
            elif isinstance(error, OF_MEMORY):
                passes(error)

        self._hooks.patches.watch(iterator, "__next__", before=asked, failed=failed)
        begins = guarded("data hook")(self._hooks.interrupt_plain_steps)
        self._hooks.patches.watch(dataloader.DataLoader, "__iter__", before=begins, pausable=False)

    def _asked(self, iterator: Any) -> None:
        hooks, clock = self._hooks, self._hooks.clock
        self.batches += 1
        if not clock.is_training_thread(loads=True):
            return
        hooks.end_step_by_hand()
        if clock.phase != EVAL:
            clock.enter(DATA)
            size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
            self.batch_size = size if isinstance(size, int) else None
        if self.batches == 2:
            hooks.find_models_in_first_step()
        if hooks.graphs is not None and not clock.is_control_step:
            hooks.timed(hooks.graphs.before_batch)

    def _ended(self, batches: int) -> None:
        hooks = self._hooks
        if hooks.graphs is not None and hooks.clock.is_training_thread(loads=True):
            may_be_epoch = batches > 0 and hooks.grad_enabled() and hooks.in_training_mode
            hooks.timed(hooks.graphs.after_batches, batches, may_be_epoch)
