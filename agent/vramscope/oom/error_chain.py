"""Exceptions: their causes, and the frames that they came from."""

from __future__ import annotations

from types import FrameType
from typing import Final

from vramscope.oom import error_stack
from vramscope.process.frames import is_own as is_ours
from vramscope.protocol.oom_record import MAX_FRAMES, Frame

CHAIN: Final = 6
"""Errors of a chain that are examined."""


def chain_of(fault: BaseException) -> list[BaseException]:
    """The error and its causes, newest first."""
    chain: list[BaseException] = []
    known: BaseException | None = fault
    while known is not None and len(chain) < CHAIN and known not in chain:
        chain.append(known)
        known = known.__cause__ or (None if known.__suppress_context__ else known.__context__)
    return chain


def living_frames_of(fault: BaseException) -> list[FrameType]:
    """Frames that it has left so far, innermost first. They live as long as the error."""
    frames = []
    step = fault.__traceback__
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    return frames[::-1][:MAX_FRAMES]


def frames_around(fault: BaseException) -> list[FrameType]:
    """Frames around the ``except`` block that handles the error, innermost first."""
    return [] if fault.__traceback__ is None else error_stack.stack_of(fault.__traceback__.tb_frame.f_back)


def frames_of(fault: BaseException) -> list[Frame]:
    """Frames that an error came from, for the record, innermost first."""
    frames = []
    step = fault.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not is_ours(code.co_filename):
            frames.append(
                Frame(
                    file=code.co_filename[:4096],
                    line=step.tb_lineno or 0,
                    function=getattr(code, "co_qualname", code.co_name)[:4096],
                    own=error_stack.is_own(code.co_filename),
                )
            )
        step = step.tb_next
    return frames[::-1][:MAX_FRAMES]
