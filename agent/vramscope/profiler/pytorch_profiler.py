"""PyTorch's one profiler per process: the agent's while a profile is recorded, the user's at all other times.

PyTorch reports whether a profiler is active. Patches of the two functions that every profiler of PyTorch calls first detect
another start. If the user starts a profiler while the agent's is open, the agent's is closed first and its result dropped.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.process.on_thread import on_thread
from vramscope.process.patching import Patches

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGINNINGS: Final = ("_prepare_profiler", "_enable_profiler")
OTHERS: Final = ("KINETO_USE_DAEMON", "NSYS_PROFILING_SESSION_ID", "NV_COMPUTE_PROFILER_PERFWORKS_DIR")
"""Variables set by other profilers that may use the device's counters at any time: dynolog, Nsight Systems, Nsight Compute."""
LOG_LEVEL: Final = "KINETO_LOG_LEVEL"
SILENT: Final = "99"


class PytorchProfiler:
    """Opens and closes torch.profiler on the training thread, and detects other starts.

    on_taken   called before the user's own profiler starts while the agent's is open
    """

    def __init__(self, on_taken: Callable[[], None]) -> None:
        from torch.autograd import profiler

        self._module = profiler
        self._on_taken = guarded("stopping for the user's profiler")(on_taken)
        self._profiler: Any = None
        self._thread = 0
        self._calling = False
        self._patches = Patches()

    @property
    def is_open(self) -> bool:
        """True while the agent's profiler records."""
        return self._profiler is not None

    @property
    def is_ours_on_this_thread(self) -> bool:
        """True if the agent's profiler records and this thread may close it: only the thread that opened it may."""
        return self.is_open and self._thread == get_ident()

    @property
    def is_users(self) -> bool:
        """True if the program profiles, or may at any time: nothing may be changed."""
        if self.is_open:
            return False
        enabled = getattr(self._module, "_profiler_enabled", None) or self._native_enabled
        return bool(enabled()) or any(os.environ.get(name, "0") not in ("", "0") for name in OTHERS)

    @staticmethod
    def _native_enabled() -> bool:
        import torch

        return bool(torch._C._autograd._profiler_enabled())

    def open(self, *, stacks: bool, shapes: bool, memory: bool) -> None:
        """Profile from now on: the CPU, the device if possible, and memory. 1 ms; more for the first one in a process.

        memory   also the CPU's: PyTorch then warns on the terminal for each thousandth block that was allocated before
        """
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        words: dict[str, Any] = {
            "activities": activities,
            "profile_memory": memory,
            "record_shapes": shapes,
            "with_stack": stacks,
            "acc_events": False,
        }
        accepted = inspect.signature(profile).parameters
        own_profile = profile(**{name: word for name, word in words.items() if name in accepted})
        # Set before the start: a start that fails half way has to be closed, too.
        self._profiler, self._thread = own_profile, get_ident()
        self._calling = True
        try:
            with _quiet_kineto():
                own_profile.start()
        finally:
            self._calling = False

    def leave(self) -> None:
        """Stop profiling and drop the result. From any thread: on another one, the profiler's thread does it soon."""
        if self.is_open:
            on_thread(self._thread, self._leave)

    def _leave(self) -> None:
        if self.is_open:
            self.close()

    def close(self) -> Any:
        """Stop profiling. Returns ``torch.profiler.profile``, whose events are not read yet. 4 to 30 µs an event."""
        own_profile, self._profiler = self._profiler, None
        try:
            with _quiet_kineto():
                own_profile.stop()
        finally:
            # A stop that failed early would leave all later operations of the training recorded.
            if self._native_enabled():
                self._module._disable_profiler()
        return own_profile

    # -- other starts --------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Detect other starts until :meth:`release`."""
        for name in BEGINNINGS:
            if hasattr(self._module, name):
                self._patches.wrap(self._module, name, self._start_called)

    def release(self) -> None:
        """Restore PyTorch's own functions."""
        self._patches.remove()

    def forget(self) -> None:
        """Drop the profile in a forked child: it belongs to the parent."""
        self._profiler = None
        self.release()

    def _start_called(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_open and not self._calling:
            self._on_taken()
        return original(*args, **kwargs)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Silence PyTorch's profiling library, which prints to the terminal unless this variable is set.

    The library reads the variable at its first start, so it must be set by then. A value set by the user is kept.
    """
    value = os.environ.get(LOG_LEVEL)
    if value is None:
        os.environ[LOG_LEVEL] = SILENT
    try:
        yield
    finally:
        if value is None:
            os.environ.pop(LOG_LEVEL, None)
