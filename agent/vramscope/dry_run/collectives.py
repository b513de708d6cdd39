"""Waits for finished collectives. PyTorch keeps their tensors until its watchdog thread has seen the end.

PyTorch's NCCL watchdog polls every 100 ms. What it has seen is released with the next collective. On an emulated GPU several
steps fit into that time, so that the gradient buckets of DistributedDataParallel's first step overlapped with those of
later steps, or did not, by chance. A dry run waits after each step, as if steps took longer than the interval.
"""

from __future__ import annotations

import sys
import time
from typing import Final

POLL_SECONDS: Final = 0.1
"""Interval of the watchdog (``kWatchdogThreadSleepMillis`` in PyTorch's ProcessGroupNCCL)."""


def wait_until_finished() -> None:
    """Wait until the watchdog has seen the end of each NCCL collective. Returns at once in a process without NCCL."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if "nccl" in str(distributed.get_backend_config()):
        time.sleep(2.5 * POLL_SECONDS)
