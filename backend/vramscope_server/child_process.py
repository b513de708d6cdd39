"""Ends a process of the server with the server, however that one ends.

A server that shuts down ends its processes itself. One that is killed cannot: its processes would go on compiling, or
writing into a folder that the next server has cleared already. So the system does it (``PR_SET_PDEATHSIG``). That needs
no running thread, while machine code may block the interpreter for seconds.

``python -m vramscope_server.child_process PARENT COMMAND ...`` runs a command in such a process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with(parent: int) -> None:
    """Call this first in such a process: it is killed when ``parent``, or the thread of it that started this process, ends.

    On systems other than Linux it has no effect.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)


def main() -> None:
    end_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # the command keeps what was set


if __name__ == "__main__":
    main()
