"""Finds a running Trainer that was not passed to attach, by the frames of its own loop."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

from vramscope.integrations import huggingface, lightning
from vramscope.process.frames import locals_of

MOST_FRAMES: Final = 200
"""Maximum number of frames between the caller and the Trainer's loop."""


def trainer_at_work() -> Any:
    """Returns the Trainer (transformers or Lightning) whose training runs on this thread; None if there is none. Costs 10
    µs, or 1 µs a frame if there is one."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("transformers.trainer") or ".trainer." in module:
            target = locals_of(frame).get("self")
            if huggingface.is_trainer(target) or lightning.package_of(target) is not None:
                return target
        frame = frame.f_back
    return None
