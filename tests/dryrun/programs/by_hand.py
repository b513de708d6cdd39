"""Changes that several programs make in their code in the same way. HAND names those that are wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

HAND = os.environ.get("HAND", "").split(",")
RANKS = next((int(name.removeprefix("fsdp_")) for name in HAND if name.startswith("fsdp_")), 1)


def sharded(model: torch.nn.Module, blocks: Iterable[torch.nn.Module] = ()) -> None:
    """Shard a model with FSDP2 if that is wanted. On cards the backend is NCCL, and torchrun starts the ranks."""
    if RANKS == 1:
        return
    from torch.distributed import init_process_group, is_initialized
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not is_initialized():
        init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    for block in blocks:
        fully_shard(block)
    fully_shard(model)


def optimizer_class(name: str) -> Any:
    """Return a class of PyTorch's optimizers, or that of bitsandbytes with 8-bit states if that is wanted."""
    if "eight_bit_optimizer" not in HAND:
        return getattr(torch.optim, name)
    import bitsandbytes

    return getattr(bitsandbytes.optim, f"{name}8bit")
