"""Counts what an autograd graph keeps alive: saved tensors, attributes of custom Functions, parameters of older models.

Saved tensors are read as they lie (``SavedTensor.data``, PyTorch 2.11), so that no unpack hook runs: no recomputation of a
checkpoint, no copy back from the host. Where that is missing they are read through the hook only if none is set.
The walk makes Python wrappers of the nodes it visits, so it is bounded (see sentinel.py).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from vramscope.graphs import storages
from vramscope.graphs.storages import Storages

NODE_BYTES: Final = 480
"""of host memory a node takes on average (286 nodes of a GPT in 138 KB)"""
MOST_NODES: Final = 4_000
"""of one look"""

_NO_NUMBER: Final = 2**64 - 1


class Budget:
    """Nodes that may still be visited in this look."""

    def __init__(self, nodes: int = MOST_NODES) -> None:
        self.left = nodes


class Graph(NamedTuple):
    """What lies behind one node."""

    saved: Storages
    """storages of saved tensors and of what custom Functions keep"""
    attributes: tuple[tuple[type, str, int], ...]
    """(Function, attribute, bytes) of tensors that a custom Function keeps beside save_for_backward"""
    parameters: Storages
    """leaves that gradients flow to, and their gradients"""
    oldest: int
    """sequence number of the operation that was made first; of those visited"""
    nodes: int
    complete: bool


_saved_names: dict[type, tuple[str, ...]] = {}


def walk(root: Any, budget: Budget) -> Graph:
    """Visit a graph from a node down. About 1.6 µs a node."""
    import torch

    function = torch.autograd.function.BackwardCFunction
    saved: Storages = {}
    parameters: Storages = {}
    attributes: list[tuple[type, str, int]] = []
    oldest, stack = _NO_NUMBER, [root]
    seen: set[Any] = set()
    while stack:
        if budget.left <= 0:
            return Graph(saved, tuple(attributes), parameters, oldest, len(seen), False)
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        budget.left -= 1
        number = node._sequence_nr()
        if number == _NO_NUMBER:
            variable = getattr(node, "variable", None)
            if variable is not None:
                storages.add(parameters, variable)
                if variable.is_leaf and variable.grad is not None:
                    storages.add(parameters, variable.grad)
            continue
        oldest = min(oldest, number)
        for tensor in _saved_by(node):
            storages.add(saved, tensor)
        if isinstance(node, function):
            for name, value in list(node.__dict__.items()):
                for tensor in _tensors_in(value):
                    found = storages.storage_of(tensor)
                    if found is not None:
                        saved[found[0]] = found[1]
                        attributes.append((type(node), name, found[1]))
        stack.extend(child for child, _ in node.next_functions if child is not None and child not in seen)
    return Graph(saved, tuple(attributes), parameters, oldest, len(seen), True)


def _saved_by(node: Any) -> list[Any]:
    kind = type(node)
    names = _saved_names.get(kind)
    if names is None:
        names = _saved_names[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved"))
    found = []
    for name in names:
        try:
            value = getattr(node, name)
        except RuntimeError:
            continue  # freed by a backward
        for packed in value if isinstance(value, (list, tuple)) else (value,):
            found.extend(_tensors_in(_as_it_lies(packed)))
    return found


def _as_it_lies(packed: Any) -> Any:
    """The stored object of a SavedTensor; None where it was freed, or where only a hook of the user's could say."""
    try:
        return packed.data
    except (AttributeError, RuntimeError):
        return None


def _tensors_in(value: Any, depth: int = 2) -> list[Any]:
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return [value]
    if depth and kind in (tuple, list, dict):
        parts = list(value.values() if kind is dict else value)[:64]
        return [tensor for part in parts for tensor in _tensors_in(part, depth - 1)]
    return []
