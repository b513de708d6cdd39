"""The changes of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from vramscope.dry_run.changes.accumulation import Accumulation
from vramscope.dry_run.changes.allocator import ExpandableSegments
from vramscope.dry_run.changes.attention import ScaledDotProductAttention
from vramscope.dry_run.changes.autocast import Autocast
from vramscope.dry_run.changes.change import Change
from vramscope.dry_run.changes.checkpointing import Checkpointing
from vramscope.dry_run.changes.eight_bit_optimizer import EightBitOptimizer
from vramscope.dry_run.changes.fully_sharded import FullySharded
from vramscope.dry_run.changes.optimizer_loop import OptimizerLoop
from vramscope.dry_run.changes.optimizer_offload import OptimizerOffload
from vramscope.guard import guarded
from vramscope.process.patching import Patches
from vramscope.protocol.dry_run import CHANGES_VARIABLE, ChangeName

MAKERS: Final[Mapping[ChangeName, Callable[[], Change]]] = {
    "expandable_segments": ExpandableSegments,
    "fused_optimizer": lambda: OptimizerLoop("fused"),
    "sdpa": ScaledDotProductAttention,
    "single_tensor_optimizer": lambda: OptimizerLoop("foreach"),
    "eight_bit_optimizer": EightBitOptimizer,
    "bf16_autocast": lambda: Autocast("bf16_autocast", "bf16"),
    "fp16_autocast": lambda: Autocast("fp16_autocast", "fp16"),
    "checkpointing": Checkpointing,
    "accumulation": Accumulation,
    "optimizer_offload": OptimizerOffload,
    "fsdp_2": lambda: FullySharded(2),
    "fsdp_4": lambda: FullySharded(4),
    "fsdp_8": lambda: FullySharded(8),
}


@guarded("the changes of the dry run", default=list[Change]())
def install() -> list[Change]:
    """Install the changes that the environment names, and begin them when the first optimizer was made."""
    names = [name for name in os.environ.get(CHANGES_VARIABLE, "").split(",") if name]
    changes = [make() for name, make in MAKERS.items() if name in names]
    for change in changes:
        change.install()
    if changes:
        _begin_with_first_optimizer(changes)
    return changes


def _begin_with_first_optimizer(changes: Sequence[Change]) -> None:
    from torch.optim.optimizer import Optimizer

    waiting = list(changes)
    begin = guarded("the changes of the dry run")(lambda change: change.begin())

    def around(original: Any, *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        while waiting:
            begin(waiting.pop())

    Patches().wrap(Optimizer, "__init__", around)
