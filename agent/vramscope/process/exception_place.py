"""Line of the user's code from which an exception came."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from vramscope.process.frames import is_library, is_own
from vramscope.protocol import messages

EVENT: Final = "exception"


def place_of(traceback: TracebackType | None) -> tuple[str, int, str] | None:
    """File, line and function of the innermost frame that is the user's; None without one. Keeps no frame."""
    place: tuple[str, int, str] | None = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_own(code.co_filename) and not is_library(code.co_filename):
            place = (code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return place


def note_exception(fault: BaseException, step: int, put: Callable[[messages.Event], object]) -> None:
    """Send an event with the line of an exception that ends the process. Out-of-memory errors have another record.

    step   number of finished steps
    """
    kind, place = type(fault).__name__, place_of(fault.__traceback__)
    if place is None or "OutOfMemory" in kind:
        return
    file, line, function = place
    data: dict[str, messages.Scalar] = {"error_type": kind, "file": file, "line": line, "function": function}
    put(messages.Event(time_ns=time.time_ns(), kind=EVENT, step=step, data=data))
