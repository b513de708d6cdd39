"""Whether torch.compile has compiled anything in this process."""

from __future__ import annotations

import sys


def is_compiled() -> bool:
    """Return whether torch.compile has compiled a frame. A patch of a module's call would then cause a recompilation."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    return bool(counters and counters.get("frames"))
