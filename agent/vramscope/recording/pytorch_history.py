"""PyTorch's one switch for allocator history: ours while a window is recorded, the user's at all other times.

There is one history a process. Whether somebody has it on is asked of PyTorch; who calls the switch is heard by a thin
function in front of ``torch._C``'s, as long as the session lives. A user who calls it while a window is open finds it as if
nobody had recorded: the window is given up first. Who changes the allocator's settings meanwhile, or empties its cache, is heard in
the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.memory.peak_counters import EMPTIERS
from vramscope.process.patching import Patches

SWITCHES: Final = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
SETTERS: Final = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
"""of the allocator's settings, since torch 2.13 and before"""


class PytorchHistory:
    """Switches recording on and off, and hears when somebody else does.

    on_taken      called before the user's own call of the switch reaches PyTorch while a window is open
    on_settings   called when the allocator's settings have been changed meanwhile
    on_emptying   called when its cache is about to be emptied meanwhile
    """

    def __init__(
        self, on_taken: Callable[[], None], on_settings: Callable[[], None], on_emptying: Callable[[], None]
    ) -> None:
        import torch

        self._native = torch._C
        self._memory = torch.cuda.memory
        self._on_taken = guarded("giving way to the user's history")(on_taken)
        self._on_settings = guarded("noting new settings")(on_settings)
        self._on_emptying = guarded("noting an emptied cache")(on_emptying)
        known = getattr(self._memory, "_record_memory_history_impl", self._memory._record_memory_history)
        self._accepted = frozenset(inspect.signature(known).parameters)
        self.keeps_when_switched: Final = "clear_history" in self._accepted
        """stacks can be switched on in the middle: seen on torch 2.11 to 2.13; where clear_history is missing they are not"""
        self.ours = False
        self._calling = False
        self._patches = Patches()

    @property
    def is_the_users(self) -> bool:
        """Somebody else records: nothing may be touched."""
        return not self.ours and bool(self._native._cuda_isHistoryEnabled())

    def begin(self, most_events: int, *, stacks: bool, frees: bool = False) -> None:
        """Record from now on, from an empty history; the newest ``most_events`` are kept. Some 25 µs.

        frees   with stacks, those of what lets go, too: 0.1 to 0.2 µs an event more while they are recorded, 0.15 µs more when they
                are read on the training thread and 0.1 µs when they are packed (CPU time, on the emulated GPU)
        """
        self.ours = True
        self._switch(
            "all", context=None if not stacks else "all" if frees else "alloc", most_events=most_events, clear=True
        )

    def add_stacks(self, most_events: int) -> None:
        """From now on with the Python stack of each allocation: about 1 µs an event more."""
        self._switch("all", context="alloc", most_events=most_events, clear=False)

    def end(self) -> None:
        """Record no more, and forget what was recorded. Nothing happens where it is not ours."""
        if self.ours:
            self._switch(None, context=None, most_events=1, clear=True)
            self.ours = False

    def _switch(self, enabled: str | None, *, context: str | None, most_events: int, clear: bool) -> None:
        words = {
            "context": context,
            "stacks": "python",  # C++ frames are symbolised when read, which takes minutes
            "max_entries": most_events,
            "clear_history": clear,
        }
        self._calling = True
        try:
            self._memory._record_memory_history(
                enabled, **{name: word for name, word in words.items() if name in self._accepted}
            )
        finally:
            self._calling = False

    # -- who else calls the switch -------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Hear the switch from now on, until :meth:`release`."""
        for name in SWITCHES:
            if hasattr(self._native, name):
                self._patches.wrap(self._native, name, self._hear)
        for name in SETTERS:
            if hasattr(self._native, name):
                self._patches.wrap(self._native, name, self._hear_settings)
        # (a call that finds nothing to give back is no event, and under other settings it may find something)
        for name in EMPTIERS:
            if hasattr(self._native, name):
                self._patches.wrap(self._native, name, self._hear_emptying)

    def release(self) -> None:
        """PyTorch's own functions again."""
        self._patches.remove()

    def forget(self) -> None:
        """In a forked child: what is on there belongs to the parent, and CUDA is not for this process."""
        self.ours = False
        self.release()

    def _hear(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.ours and not self._calling:
            self._on_taken()
        return original(*args, **kwargs)

    def _hear_settings(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:  # (a text that is refused may have set what stands before the fault)
            if self.ours:
                self._on_settings()

    def _hear_emptying(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.ours:
            self._on_emptying()
        return original(*args, **kwargs)
