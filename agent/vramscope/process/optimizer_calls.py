"""Listens to the steps of all optimizers of the process, through one pair of PyTorch's global hooks.

All parts of a session share the pair, because Dynamo compiles an optimizer's step again when the hooks change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vramscope.process.hide_from_dynamo import outside_of_graphs
from vramscope.process.hook_numbers import own_hook_numbers

Listener = Callable[[Any, Any, Any], None]


class OptimizerCalls:
    """Listeners to the begin and end of steps. One for the process: :data:`optimizer_calls`."""

    def __init__(self) -> None:
        self._before: tuple[Listener, ...] = ()
        self._after: tuple[Listener, ...] = ()
        self._removals: list[Callable[[], None]] = []
        self._running = 0
        """Number of our hooks that run now."""

    def before(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener(optimizer, args, kwargs)`` before each step. Returns a function that ends this."""
        self._before = (*self._before, listener)
        self._update()

        def end() -> None:
            self._before = tuple(one for one in self._before if one is not listener)
            self._update()

        return end

    def after(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener(optimizer, args, kwargs)`` after each step. Returns a function that ends this."""
        self._after = (*self._after, listener)
        self._update()

        def end() -> None:
            self._after = tuple(one for one in self._after if one is not listener)
            self._update()

        return end

    def _update(self) -> None:
        if self._before or self._after:
            if not self._removals:
                self._register()
        elif self._running <= 0:  # PyTorch goes through its hooks now: without ours, ``step()`` would raise
            while self._removals:
                self._removals.pop()()

    def _register(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        # Without a function in common: each frame costs up to 1 µs where the caches are cold.

        def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not self._before:
                return
            self._running += 1
            try:
                for listener in self._before:
                    listener(optimizer, args, kwargs)
            finally:
                self._running -= 1

        def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._running += 1
            try:
                for listener in self._after:
                    listener(optimizer, args, kwargs)
            finally:
                self._running -= 1

        with own_hook_numbers():
            handles = (
                register_optimizer_step_pre_hook(outside_of_graphs(begins)),
                register_optimizer_step_post_hook(outside_of_graphs(ends)),
            )
        self._removals = [handle.remove for handle in handles]


optimizer_calls: Final = OptimizerCalls()
