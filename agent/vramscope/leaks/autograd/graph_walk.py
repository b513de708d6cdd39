"""What an autograd graph retains: saved tensors, attributes of custom Functions, parameters of older models.

Saved tensors are read so that no unpack hook runs (saved_tensors.py): no recomputation of a checkpoint, no copy from the host.
The walk makes Python wrappers of the nodes it visits. So it is bounded in one scan, and for chains through many steps in all
scans together (live_graphs.py).
"""

from __future__ import annotations

import heapq
from typing import Any, Final, NamedTuple

from vramscope.leaks.autograd.saved_tensors import saved as saved_tensors
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages

NODE_BYTES: Final = 480
"""Host memory of a node on average (286 nodes of a GPT in 138 KB)."""
MOST_NODES: Final = 4_000
"""Nodes that one scan visits."""
MOST_CHAINED: Final = 12_000
"""Live nodes of earlier steps that scans have wrapped. PyTorch frees 38,000 in a row on a stack of 8 MB, and crashes at 44,000."""
LEAST_CHAINED: Final = 100
"""Least nodes of earlier steps that one scan may visit."""
KEY: Final = "vramscope walked"

_NO_NUMBER: Final = 2**64 - 1


class Chains:
    """Live nodes of earlier steps that our walks have wrapped. One per session.

    Each scan may visit a quarter of what is left: a graph that grows without end is walked in ever shorter parts, newest first.
    """

    def __init__(self) -> None:
        self.wrapped = 0
        self.step_numbers = 0
        """Sequence numbers of a step; 0 if unknown."""

    @property
    def allowed(self) -> int:
        """Nodes of earlier steps that the next scan may visit."""
        return max(LEAST_CHAINED, (MOST_CHAINED - self.wrapped) // 4)

    def walked(self, root: Any, nodes: int) -> None:
        """Note the nodes of earlier steps that a walk from ``root`` visited. They count until it dies."""
        root.metadata[KEY] = _Walked(self, nodes)


class _Walked:
    __slots__ = ("_chains", "_nodes")

    def __init__(self, chains: Chains, nodes: int) -> None:
        self._chains, self._nodes = chains, nodes
        chains.wrapped += nodes

    def __del__(self) -> None:
        self._chains.wrapped -= self._nodes


class NodeBudget:
    """Nodes that this scan may still visit."""

    def __init__(self, chains: Chains | None = None, nodes: int = MOST_NODES) -> None:
        self.left = nodes
        self.chains = chains or Chains()
        self.chained_left = self.chains.allowed


class Graph(NamedTuple):
    """What one node leads to."""

    saved: Storages
    """Storages of saved tensors and of attributes of custom Functions."""
    attributes: tuple[tuple[type, str, int], ...]
    """(Function, attribute, bytes) of tensors that a custom Function keeps outside save_for_backward."""
    parameters: Storages
    """Storages of leaves that gradients flow to, and of their gradients."""
    numbers: frozenset[int]
    """Sequence numbers of the visited nodes."""
    oldest: int
    """The lowest of them."""
    nodes: int
    complete: bool
    goes_on: bool
    """True if operations of earlier steps were seen and not visited. An incomplete walk alone may have ended within its step."""


def walk(root: Any, budget: NodeBudget, known: set[Any] | None = None) -> Graph:
    """Visit a graph from a node down. About 1.6 µs a node. ``known``: nodes of earlier walks, which are skipped; updated.

    Nodes of earlier steps are visited newest first, however they are connected. Where the budget ends, everything down to the
    oldest visited operation is counted, and the rest can be extrapolated.
    """
    import torch

    function = torch.autograd.function.BackwardCFunction
    saved: Storages = {}
    parameters: Storages = {}
    attributes: list[tuple[type, str, int]] = []
    numbers: set[int] = set()
    stack = [root]
    older: list[tuple[int, int, Any]] = []
    seen: set[Any] = set() if known is None else known
    before = len(seen)
    own_step = root._sequence_nr() - budget.chains.step_numbers
    chained_left, left_out = budget.chained_left, False
    while (stack or older) and budget.left > 0:
        if stack:
            node = stack.pop()
            number = node._sequence_nr()
            if number < own_step and node not in seen:
                heapq.heappush(older, (-number, id(node), node))
                continue
        elif budget.chained_left <= 0:
            left_out = True
            break
        else:
            number, _, node = heapq.heappop(older)
            number = -number
            budget.chained_left -= node not in seen
        if node in seen:
            continue
        seen.add(node)
        budget.left -= 1
        if number == _NO_NUMBER:
            variable = getattr(node, "variable", None)
            if variable is not None:
                storages.add(parameters, variable)
                if variable.is_leaf and variable.grad is not None:
                    storages.add(parameters, variable.grad)
            continue
        numbers.add(number)
        for value in saved_tensors.of(node, number):
            for tensor in tensors_in(value):
                storages.add(saved, tensor)
        if isinstance(node, function):
            for name, value in list(node.__dict__.items()):
                for tensor in tensors_in(value):
                    found = storages.storage_of(tensor)
                    if found is not None:
                        saved[found[0]] = found[1]
                        attributes.append((type(node), name, found[1]))
        stack.extend(child for child, _ in node.next_functions if child is not None and child not in seen)
    if budget.chained_left < chained_left:
        budget.chains.walked(root, chained_left - budget.chained_left)
    oldest = min(numbers, default=_NO_NUMBER)
    complete = not (stack or older or left_out)
    unvisited = [*(node for _, _, node in older), *(node for node in stack if node._sequence_nr() < own_step)]
    goes_on = any(node not in seen for node in unvisited)
    return Graph(
        saved, tuple(attributes), parameters, frozenset(numbers), oldest, len(seen) - before, complete, goes_on
    )


def tensors_in(value: Any, depth: int = 2) -> list[Any]:
    """A tensor, or the tensors in a container of two levels, at most 64 entries each."""
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return [value]
    if depth and kind in (tuple, list, dict):
        parts = list(value.values() if kind is dict else value)[:64]
        return [tensor for part in parts for tensor in tensors_in(part, depth - 1)]
    return []
