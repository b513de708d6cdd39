"""FSDP2 over several ranks, of which this process is one: parameters, gradients and states are divided between them.

The other ranks are not run: PyTorch's fake process group sends nothing. The model is sharded when its optimizer is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from vramscope.dry_run.changes.change import Change
from vramscope.dry_run.changes.checkpointing import repeated_blocks
from vramscope.dry_run.one_rank import FAKE
from vramscope.guard import guarded
from vramscope.process.live_objects import living
from vramscope.protocol.dry_run import ChangeName
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

Ranks = Literal[2, 4, 8]
NAMES: Final[Mapping[Ranks, ChangeName]] = {2: "fsdp_2", 4: "fsdp_4", 8: "fsdp_8"}
FRAMEWORKS: Final = (
    ("transformers.trainer", "Trainer"),
    ("lightning.pytorch.trainer.trainer", "Trainer"),
    ("pytorch_lightning.trainer.trainer", "Trainer"),
    ("accelerate.accelerator", "Accelerator"),
)
"""Classes that shard models by settings of their own."""


class FullySharded(Change):
    """Shards the repeated blocks of a model, and then the model."""

    reason = "no optimizer of a model's parameters was made"

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.name = NAMES[ranks]
        self._ranks = ranks

    def install(self) -> None:
        """Shard what an optimizer is to update, before it is made."""
        from torch.optim.optimizer import Optimizer

        change = guarded("a change of the dry run")(self._shard)

        def around(original: Any, optimizer: Any, params: Any, *args: Any, **kwargs: Any) -> None:
            groups = _listed(params)
            change(groups)
            original(optimizer, groups, *args, **kwargs)

        self.patches.wrap(Optimizer, "__init__", around)

    def _shard(self, groups: list[Any]) -> None:
        from torch import distributed

        if (framework := _framework()) is not None:
            self.reason = f"{framework} shards a model by its own settings; use --ranks"
            return
        if not self._changed:
            if distributed.is_initialized():
                self.reason = "the program has process groups of its own"
                return
            from torch.testing._internal.distributed.fake_pg import FakeStore

            distributed.init_process_group(FAKE, store=FakeStore(), rank=0, world_size=self._ranks)
        slots = _slots(groups)
        wanted = {slot.parameter_id for slot in slots}
        names: dict[int, tuple[torch.nn.Module, str]] = {}
        for root in outermost_modules():
            own = {id(parameter): (root, name) for name, parameter in root.named_parameters()}
            if wanted & own.keys():
                names |= own
        # Nothing here may keep the whole parameters alive: they are freed one after the other, as in the user's code.
        for slot in slots:
            slot.clear(names)
        for root in dict.fromkeys(root for root, _ in names.values()):
            self._shard_root(root)
        for slot in slots:
            slot.fill(names)

    def _shard_root(self, root: torch.nn.Module) -> None:
        from torch.distributed.fsdp import fully_shard

        name = type(root).__name__
        blocks = repeated_blocks(root)
        blocks.pop("", None)
        lines = [f"for block in model.{where}: fully_shard(block)" for where in _containers(blocks)]
        for block in blocks.values():
            fully_shard(block)
        fully_shard(root)
        self.applied(
            name,
            'torch.distributed.init_process_group("nccl")',
            *lines,
            f"fully_shard(model)  # {name}; before the optimizer is made",
            f"torchrun --nproc-per-node {self._ranks} train.py",
        )


def _framework() -> str | None:
    for module, name in FRAMEWORKS:
        library = sys.modules.get(module)
        if library is not None and living(getattr(library, name)):
            return "Accelerate" if name == "Accelerator" else f"the {name}"
    return None


def _containers(names: Iterable[str]) -> Sequence[str]:
    """Return the containers of modules, each once."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def _listed(params: Any) -> list[Any]:
    """Return the parameters, or groups of them, as a list whose entries can be replaced. A list is returned itself."""
    from torch import Tensor

    groups = params if isinstance(params, list) else list(params)
    for group in groups:
        if isinstance(group, dict) and not isinstance(group["params"], list):
            one = isinstance(group["params"], Tensor)
            group["params"] = [group["params"]] if one else list(group["params"])
    return groups


@dataclass(frozen=True)
class _Slot:
    """Position of a parameter in the arguments of an optimizer, with or without its name."""

    entries: list[Any]
    at: int
    parameter_id: int

    def clear(self, names: Mapping[int, Any]) -> None:
        """Drop the parameter, if it is one of these."""
        if self.parameter_id in names:
            entry = self.entries[self.at]
            self.entries[self.at] = (entry[0], None) if isinstance(entry, tuple) else None

    def fill(self, names: Mapping[int, tuple[torch.nn.Module, str]]) -> None:
        """Store the parameter that now has the name of the dropped one."""
        if self.parameter_id in names:
            root, name = names[self.parameter_id]
            entry, parameter = self.entries[self.at], root.get_parameter(name)
            self.entries[self.at] = (entry[0], parameter) if isinstance(entry, tuple) else parameter


def _slots(groups: list[Any]) -> list[_Slot]:
    lists = [groups, *(group["params"] for group in groups if isinstance(group, dict))]
    return [
        _Slot(entries, at, id(entry[1] if isinstance(entry, tuple) else entry))
        for entries in lists
        for at, entry in enumerate(entries)
        if not isinstance(entry, dict)
    ]
