"""Graphs that lead to no weights which are trained: of a teacher or a target network that runs with gradients on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from vramscope.leaks.scan.find_holders import find_holders, undisturbed
from vramscope.leaks.scan.scanner import SCAN_SECONDS
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.oom.error_stack import module_of
from vramscope.oom.other_models import is_shard
from vramscope.protocol.oom_record import DataHolder

if TYPE_CHECKING:
    from vramscope.oom.other_models import LiveObjects

LEAST_SHARE: Final = 0.05
"""Share of the memory in use. Less is not named."""
MOST_NODES: Final = 20_000
"""Number of nodes that are visited, about 1 µs each. Of a larger graph nothing is known."""


def unused_graph(device: int | None, updated: Collection[int], used_bytes: int) -> DataHolder | None:
    """Return the variable that retains most of such a graph, which nothing else retains. Up to SCAN_SECONDS of its thread.

    updated   identities of the parameters of all optimizers. Without any, all graphs may be needed
    """
    if not updated:
        return None
    with undisturbed():
        groups = find_holders(TensorKinds(), TimeBudget(SCAN_SECONDS)).groups
        holders: Counter[int] = Counter()
        for group in groups:
            holders.update({*group.own, *group.saved})
        found: list[tuple[int, Any]] = []
        for group in groups:
            alone = sum(size for key, size in group.saved.items() if holders[key] == 1)
            tensors = [tensor for reference in group.references if (tensor := reference()) is not None]
            here = all(tensor.device.index == device for tensor in tensors)
            whole = group.graphs == len(tensors) and not group.cut_short and not group.cyclic
            if not group.holder.variable or not here or not whole or alone < max(1, int(LEAST_SHARE * used_bytes)):
                continue
            if all(leads_to_none_of(tensor.grad_fn, updated) for tensor in tensors):
                found.append((alone, group))
    if not found:
        return None
    alone, group = max(found, key=lambda one: one[0])
    holder = group.holder
    return DataHolder(name=holder.name, file=holder.file, line=holder.line, tensors=group.graphs, held_bytes=alone)


def updated_parameters(live: LiveObjects) -> frozenset[int]:
    """Return the identities of the parameters that optimizers update; none where these are not the models' own.

    With 32-bit copies or shards of them, a graph leads to others than the optimizer has.
    """
    updated = [one for optimizer in live.optimizers for group in optimizer.param_groups for one in group["params"]]
    own = {id(one) for model in live.models for one in model.parameters()}
    if any(id(one) not in own or is_shard(one) for one in updated):
        return frozenset()
    return frozenset(map(id, updated))


def is_differentiated(frames: Iterable[FrameType], updated: Collection[int]) -> bool:
    """Whether the running code may update weights without an optimizer: fast weights of meta-learning, by ``autograd.grad``.

    So does a forward of a model whose weights require gradients, and no optimizer has any of them.
    """
    from torch._C import DisableTorchFunction

    with DisableTorchFunction():
        for frame in frames:
            code = frame.f_code
            if code.co_name == "grad" and code.co_filename.replace("\\", "/").endswith("torch/autograd/__init__.py"):
                return True
            module = module_of(frame)
            wanted = [] if module is None else [id(one) for one in module.parameters() if one.requires_grad]
            if wanted and not any(one in updated for one in wanted):
                return True
    return False


def leads_to_none_of(root: Any, updated: Collection[int]) -> bool:
    """Return whether all leaves of a graph are parameters without gradients, and none of them is updated.

    Gradients of an input, or of what is no parameter, may be wanted by themselves. False if that is not known.
    """
    from torch.nn import Parameter

    stack, seen, parameters = [root], {root}, 0
    while stack:
        node = stack.pop()
        if node is None or len(seen) > MOST_NODES:
            return False
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            if not isinstance(leaf, Parameter) or id(leaf) in updated or leaf.grad is not None:
                return False
            parameters += 1
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return parameters > 0
