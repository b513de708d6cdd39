"""Pitfall: a rank keeps memory on the device of another rank.

A checkpoint that is read without ``map_location`` goes to the device from which it was saved, in every rank. In most cases that is
the first device. The other rank's own counters do not show this memory.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from vramscope.process.name_roots import roots
from vramscope.protocol import messages
from vramscope.protocol.number_format import amount
from vramscope.techniques.observation import TrainingState

MIN_BYTES: Final = 2**20
"""Smallest memory that is reported."""
MAX_NAMES: Final = 3
MAX_ELEMENTS: Final = 1_000
"""Number of elements of a container that are examined."""


def find(training: TrainingState, environ: Mapping[str, str] = os.environ) -> messages.Pitfall | None:
    """Search for such memory. Only if each rank of this host uses the device with its own number, and another one has memory."""
    import torch

    ranks = _ranks_of_host(environ)
    if ranks is None or not torch.cuda.is_initialized() or not training.parameters:
        return None
    own, number = ranks
    if {parameter.device for parameter in training.parameters} != {torch.device("cuda", own)}:
        return None  # a model on several devices, or on another one
    others = [device for device in range(min(number, torch.cuda.device_count())) if device != own]
    sizes = {device: torch.cuda.memory_allocated(device) for device in others}
    device = max(sizes, key=lambda device: sizes[device], default=own)
    if device == own or sizes[device] < MIN_BYTES:
        return None
    names = _names(device)
    kept_by = f", in {', '.join(names)}" if names else ""
    return training.finding(
        "memory-on-other-ranks-device",
        f"Local rank {own} keeps {amount(sizes[device])} on cuda:{device}, the device of local rank {device}{kept_by}. "
        f"Local rank {device} has that much less, and its own counters do not show it.",
        f'read a checkpoint with map_location="cpu" or map_location="cuda:{own}"',
    )


def _ranks_of_host(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """(local rank, number of ranks on this host); None with a single rank, or if unknown."""
    rank, number = environ.get("LOCAL_RANK", ""), environ.get("LOCAL_WORLD_SIZE", "")
    if not rank.isdigit() or not number.isdigit():
        import torch

        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        if distributed.get_world_size() > torch.cuda.device_count():
            return None  # several hosts, or ranks that share devices
        return (distributed.get_rank(), distributed.get_world_size()) if distributed.get_world_size() > 1 else None
    return (int(rank), int(number)) if int(number) > 1 else None


def _names(device: int) -> list[str]:
    """Variables with tensors on this device, also in a list or dict."""
    import torch

    def is_there(value: Any) -> bool:
        return type(value) is torch.Tensor and value.device.type == "cuda" and value.device.index == device

    found: dict[str, None] = {}
    for root in itertools.chain.from_iterable(roots()):
        value = root.value
        inner = dict.values(value) if isinstance(value, dict) else value if type(value) in (list, tuple) else ()
        if is_there(value) or any(map(is_there, itertools.islice(inner, MAX_ELEMENTS))):
            found[str(root)] = None
            if len(found) == MAX_NAMES:
                break
    return list(found)
