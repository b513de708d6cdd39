"""PyTorch's one profiler a process: ours while a profile is recorded, the user's at all other times.

Whether somebody profiles is asked of PyTorch; who begins to is heard by a thin function in front of the two through which
every profiler of PyTorch begins. A user who begins one while ours is open finds it as if nobody had: ours is given up first.
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
"""set where another profiler may take the device's counters at any moment: dynolog, Nsight Systems, Nsight Compute"""
LOG_LEVEL: Final = "KINETO_LOG_LEVEL"
SILENT: Final = "99"


class PytorchProfiler:
    """Opens and closes torch.profiler on the training thread, and hears when somebody else does.

    on_taken   called before the user's own profiler begins while ours is open
    """

    def __init__(self, on_taken: Callable[[], None]) -> None:
        from torch.autograd import profiler

        self._module = profiler
        self._on_taken = guarded("giving way to the user's profiler")(on_taken)
        self._profiler: Any = None
        self._thread = 0
        self._calling = False
        self._patches = Patches()

    @property
    def is_open(self) -> bool:
        """Ours is recording."""
        return self._profiler is not None

    @property
    def belongs_to_us(self) -> bool:
        """Ours is recording, and may be closed by the thread that asks: PyTorch lets only the one that opened it."""
        return self.is_open and self._thread == get_ident()

    @property
    def is_the_users(self) -> bool:
        """Somebody else profiles, or may at any moment: nothing may be touched."""
        if self.is_open:
            return False
        enabled = getattr(self._module, "_profiler_enabled", None) or self._native_enabled
        return bool(enabled()) or any(os.environ.get(name, "0") not in ("", "0") for name in OTHERS)

    @staticmethod
    def _native_enabled() -> bool:
        import torch

        return bool(torch._C._autograd._profiler_enabled())

    def open(self, *, stacks: bool, shapes: bool, memory: bool) -> None:
        """Profile from now on: CPU, the device where it can be, and memory. 1 ms; the first one in a process more.

        memory   also the CPU's: for each thousandth block that was there before, PyTorch then warns on the terminal
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
        ours = profile(**{name: word for name, word in words.items() if name in accepted})
        # Ours from now on: what fails half way through its start has to be closed, too.
        self._profiler, self._thread = ours, get_ident()
        self._calling = True
        try:
            with _quiet_kineto():
                ours.start()
        finally:
            self._calling = False

    def leave(self) -> None:
        """Profile no more, and forget what was recorded. From any thread: where it is not its own, that one does it soon."""
        if self.is_open:
            on_thread(self._thread, self._leave)

    def _leave(self) -> None:
        if self.is_open:
            self.close()

    def close(self) -> Any:
        """Profile no more; what was recorded (``torch.profiler.profile``), its events not yet read. 4 to 30 µs an event."""
        ours, self._profiler = self._profiler, None
        try:
            with _quiet_kineto():
                ours.stop()
        finally:
            # A stop that failed before it came to the switch leaves each operation of the training recorded, for good.
            if self._native_enabled():
                self._module._disable_profiler()
        return ours

    # -- who else begins one -------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Hear it from now on, until :meth:`release`."""
        for name in BEGINNINGS:
            if hasattr(self._module, name):
                self._patches.wrap(self._module, name, self._hear)

    def release(self) -> None:
        """PyTorch's own functions again."""
        self._patches.remove()

    def forget(self) -> None:
        """In a forked child: what is open belongs to the parent."""
        self._profiler = None
        self.release()

    def _hear(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_open and not self._calling:
            self._on_taken()
        return original(*args, **kwargs)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """PyTorch's profiling library writes lines to the terminal, and asks this variable whether it may.

    It is read when the library first wakes up, so it has to be there while ours begins; a user's own word is left alone.
    """
    given = os.environ.get(LOG_LEVEL)
    if given is None:
        os.environ[LOG_LEVEL] = SILENT
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(LOG_LEVEL, None)
