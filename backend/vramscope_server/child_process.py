"""A process that a server started for its own sake ends with the server, however that one ends.

A server that is told to stop ends them itself. One that is killed cannot: what it had begun would compile on, or write on into a
folder that the next server has cleared already. So the system is asked to do it (``PR_SET_PDEATHSIG``), which needs no thread
of ours to be awake: machine code may keep the interpreter for seconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with(parent: int) -> None:
    """First of all in such a process: it is killed when ``parent``, or the thread of it that began this one, ends.

    On systems other than Linux it lives on, as it would without this.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)
