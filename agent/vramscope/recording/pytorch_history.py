"""PyTorch's one switch for allocator history: the agent's while a window is recorded, the user's at all other times.

There is one history per process, and PyTorch reports whether it is on. Patches of ``torch._C`` functions detect other callers of
the switch during the session. If the user calls it while a window is open, the window is dropped first, so that the user's
history contains no agent events. Changes of the allocator's settings and calls that empty its cache are detected in the same
way.
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
"""Functions that change the allocator's settings, since torch 2.13 and before."""


class PytorchHistory:
    """Switches recording on and off, and detects other callers of the switch.

    on_taken      called before the user's own call of the switch reaches PyTorch while a window is open
    on_settings   called after the allocator's settings changed in a window
    on_emptying   called before the allocator's cache is emptied in a window
    """

    def __init__(
        self, on_taken: Callable[[], None], on_settings: Callable[[], None], on_emptying: Callable[[], None]
    ) -> None:
        import torch

        self._native = torch._C
        self._memory = torch.cuda.memory
        self._on_taken = guarded("stopping for the user's history")(on_taken)
        self._on_settings = guarded("recording new settings")(on_settings)
        self._on_emptying = guarded("recording an emptied cache")(on_emptying)
        known = getattr(self._memory, "_record_memory_history_impl", self._memory._record_memory_history)
        self._accepted = frozenset(inspect.signature(known).parameters)
        self.ours = False
        self._calling = False
        self._patches = Patches()

    @property
    def is_users(self) -> bool:
        """True if the program records by itself: nothing may be changed."""
        return not self.ours and bool(self._native._cuda_isHistoryEnabled())

    def begin(self, most_events: int, *, frees: bool = False) -> None:
        """Record from now on with Python stacks, from an empty history; the newest ``most_events`` are kept. About 25 µs.

        frees   with the stacks of frees too: 0.1 to 0.2 µs an event more while recording, 0.15 µs more to read on the
                training thread and 0.1 µs to pack (CPU time, on the emulated GPU)
        """
        self.ours = True
        self._switch("all", context="all" if frees else "alloc", most_events=most_events, clear=True)

    def end(self) -> None:
        """Stop recording and drop what was recorded. Does nothing if the history is not the agent's."""
        if self.ours:
            self._switch(None, context=None, most_events=1, clear=True)
            self.ours = False

    def _switch(self, enabled: str | None, *, context: str | None, most_events: int, clear: bool) -> None:
        words = {
            "context": context,
            "stacks": "python",  # C++ frames are symbolised when read, which takes minutes
            "max_entries": most_events,
            "clear_history": clear,
            # Else the callback for annotations belongs to the thread that begins. Ended elsewhere it stays, and PyTorch warns.
            "global_record_annotations": True,
        }
        self._calling = True
        try:
            self._memory._record_memory_history(
                enabled, **{name: word for name, word in words.items() if name in self._accepted}
            )
        finally:
            self._calling = False

    # -- other callers of the switch ------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Detect calls of the switch until :meth:`release`."""
        for name in SWITCHES:
            if hasattr(self._native, name):
                self._patches.wrap(self._native, name, self._switch_called)
        for name in SETTERS:
            if hasattr(self._native, name):
                self._patches.wrap(self._native, name, self._settings_called)
        # A call without effect is not an event, but it may have an effect in a replay under other settings.
        for name in EMPTIERS:
            if hasattr(self._native, name):
                self._patches.wrap(self._native, name, self._emptying_called)

    def release(self) -> None:
        """Restore PyTorch's own functions."""
        self._patches.remove()

    def forget(self) -> None:
        """Drop the history in a forked child: it belongs to the parent, and CUDA does not work in this process."""
        self.ours = False
        self.release()

    def _switch_called(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.ours and not self._calling:
            self._on_taken()
        return original(*args, **kwargs)

    def _settings_called(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:  # a refused text may have changed the settings that come before the error in it
            if self.ours:
                self._on_settings()

    def _emptying_called(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.ours:
            self._on_emptying()
        return original(*args, **kwargs)
