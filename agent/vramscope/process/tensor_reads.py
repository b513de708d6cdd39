"""Keeps the agent from reading gradients and graphs while another thread of the program trains.

PyTorch writes ``.grad`` and ``.grad_fn`` without the interpreter's lock. A thread that reads them at that moment may crash the
process. The training thread's own tensors are safe, because PyTorch works on them while that thread waits. A search through all
tensors of the process meets those of other threads too.
"""

from __future__ import annotations

import sys
import time
from threading import get_ident
from types import FrameType
from typing import Final

MOST_WAIT: Final = 2.0
"""Maximum seconds that other threads' first backward passes wait for the end of a search. A search ends within milliseconds of
being told to, except for passes over all objects."""
POLL: Final = 0.0005

_BACKWARD: Final = ("backward", "grad", "_engine_run_backward")
"""Functions of ``torch.autograd`` that run a backward pass."""


class TensorReads:
    """Says whether tensors may be read, and lets other threads' first backward passes wait until no read is under way.

        with reads as may_read:
            if may_read: ...

    Each side announces itself before it looks at the other, so that one of them always sees the other. Costs 0.2 µs.
    """

    __slots__ = ("_under_way", "_until", "others_train")

    def __init__(self) -> None:
        self.others_train = False
        """True once another thread has run a backward pass. Searches end early then, and none begins."""
        self._under_way = 0
        self._until = 0.0
        """Time until which backward passes of other threads wait; 0 once no read is under way."""

    def __enter__(self) -> bool:
        self._under_way += 1
        return not self.others_train

    def __exit__(self, *raised: object) -> None:
        self._under_way -= 1

    def another_thread_trains(self) -> None:
        """Another thread is about to run a backward pass. All that begin during the last read wait for its end."""
        if not self.others_train:
            self._until = time.monotonic() + MOST_WAIT
            self.others_train = True
        while self._under_way and time.monotonic() < self._until:
            time.sleep(POLL)
        self._until = 0.0

    def look_for_others(self) -> None:
        """Look whether another thread is in a backward pass now, which no hook has seen. Costs 1 µs for each thread."""
        if not self.others_train:
            stacks = sys._current_frames()
            del stacks[get_ident()]  # a frame that is named by its own local variable would live on, with its callers
            self.others_train = any(map(_is_in_backward, stacks.values()))


def _is_in_backward(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _BACKWARD and frame.f_globals.get("__name__", "").startswith("torch.autograd"):
            return True
        frame = frame.f_back
    return False
