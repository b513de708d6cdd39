"""Copies of a model's weights in dicts that the user's code refers to: a checkpoint that was read, the best state so far, an
average of the weights.

A dict may be a copy if it has parameters of the model by name and shape. Sizes alone prove nothing. It is called one only if its
values are near those of the weights, too: moments and gradients have the same names and shapes.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.leaks.holders.line_search import attribute_kept_at, name_kept_at
from vramscope.leaks.holders.user_code import own_codes
from vramscope.leaks.scan.object_children import Shapes, children
from vramscope.memory.tensor_bytes import storages
from vramscope.memory.variable_contents import VariableContents
from vramscope.oom.other_models import DICTS, FEWEST_NAMES, copies_by_name
from vramscope.oom_diagnosis.facts import line_of
from vramscope.process import type_info
from vramscope.process.name_roots import ATOMS, Root, roots
from vramscope.protocol.oom_record import DataHolder

if TYPE_CHECKING:
    import torch

DEPTH: Final = 3
"""Containers and objects that a variable may lead through: ``checkpoint["model"]``, ``average.shadow``."""
MOST_OPENED: Final = 5_000
"""Number of containers and objects that are opened for each group of variables, a few µs each."""
MOST_OF_ONE: Final = 500
"""Number of them behind one variable, so that a large object leaves room for the variables after it."""
MOST_CHILDREN: Final = 100
"""Number of references that are followed from one of them."""
COMPARED: Final = 8
"""Number of tensors whose values are compared, and of values in each."""
NEAR_SHARE: Final = 0.75
"""Least share of these values that are equal, or differ by half of the larger one at most. Of unrelated ones a fifth does."""


def in_variables(weights: Mapping[str, torch.Tensor]) -> VariableContents:
    """Return what variables of the program lead to, and the copies of these parameters, given by name, among it.

    Runs none of the user's code.
    """
    import torch

    found = VariableContents([], [], [], [])
    for opened in _opened():
        for one in (opened.value, *(child for _, child in opened.children)):
            kind = type(one)
            if issubclass(kind, torch.Tensor):
                found.tensors.append(one)
            elif issubclass(kind, torch.nn.Module):
                found.models.append(one)
            elif issubclass(kind, torch.optim.Optimizer):
                found.optimizers.append(one)
        copies = list(copies_by_name(weights, [opened.value])) if type(opened.value) in DICTS else []  # type: ignore[list-item]
        if copies:
            name = _spoken(opened.root, opened.path)
            found.copies.extend((name, tensor) for tensor in copies)
            opened.children.clear()
    return found


def largest(weights: Mapping[str, torch.Tensor], device: int, among: Collection[int]) -> DataHolder | None:
    """Return the variable that leads to most copies of these parameters on the device, given by name.

    among   storages that count; gradients and optimizer state have the same shapes
    """
    found: dict[tuple[str, str, int], _Copies] = {}
    for opened in _opened():
        if type(opened.value) not in DICTS:
            continue
        pairs = _pairs(weights, opened.value)  # type: ignore[arg-type]
        parts = {key: size for _, one in pairs for key, size in storages(one, device) if key in among}
        if parts and have_near_values(pairs):
            key = (opened.root.spoken, opened.path, id(opened.root.code))  # elements of a list have one path
            found.setdefault(key, _Copies(opened.root, opened.path, {})).sizes.update(parts)
            opened.children.clear()
    if not found:
        return None
    root, path, sizes = max(found.values(), key=lambda one: sum(one.sizes.values()))
    at = _kept_at(root, path)
    return DataHolder(
        name=f"{root.spoken}{path}"[:4096],
        file=None if at is None else at[0].co_filename,
        line=None if at is None else at[1],
        tensors=len(sizes),
        held_bytes=sum(sizes.values()),
    )


class _Copies(NamedTuple):
    """Copies behind one variable: bytes of each storage."""

    root: Root
    path: str
    sizes: dict[int, int]


def _pairs(weights: Mapping[str, torch.Tensor], named: Mapping[Any, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Parameters and the tensors that a dict has by their names, with their shapes; none if there are few."""
    import torch

    pairs = [
        (weights[name], value)
        for name, value in list(named.items())
        if type(name) is str and name in weights and issubclass(type(value), torch.Tensor)
    ]
    alike = [(own, one) for own, one in pairs if one.shape == own.shape and one.is_leaf and one.is_floating_point()]
    return alike if len(alike) >= FEWEST_NAMES else []


def have_near_values(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Whether tensors have the values of the parameters beside them, or of earlier ones: gradients and moments have others.

    Reads a few numbers of the largest ones from the device, and waits for it. An emulated one has no values: all are near.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return False
    near = read = 0
    with torch._C.DisableTorchFunctionSubclass(), _disable_current_modes(), torch.no_grad():
        for own, one in sorted(pairs, key=lambda pair: pair[0].numel(), reverse=True)[:COMPARED]:
            for number in range(COMPARED):
                at = [size * number // COMPARED for size in own.shape]
                mine, other = float(own[tuple(at)]), float(one[tuple(at)])
                near += mine == other or abs(mine - other) <= max(abs(mine), abs(other)) / 2
                read += 1
    return read > 0 and near >= NEAR_SHARE * read


def optimizer_in_variables() -> bool:
    """Return whether a variable of the program leads to an optimizer. Some ms; runs none of the user's code."""
    return bool(in_variables({}).optimizers)


class _Opened(NamedTuple):
    """A container or an object that a variable leads to; or a tensor, a module or an optimizer that is one."""

    root: Root
    path: str
    value: object
    children: list[tuple[str, Any]]
    """What it refers to, by labels. Whoever clears the list ends the search there."""


def _opened() -> Iterator[_Opened]:
    """Yield what variables lead to, up to DEPTH, and not through modules: those of the user are searched by themselves."""
    import torch

    named = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    leaves = (*ATOMS, *named, type, types.ModuleType)
    known: set[int] = set()
    shapes: Shapes = {}
    for group in roots():
        left = MOST_OPENED
        for root in group:
            most = min(left, MOST_OF_ONE)
            opened = 0
            waiting: list[tuple[object, str, int]] = [(root.value, "", 0)]
            while waiting and opened < most:
                value, path, depth = waiting.pop()
                kind = type(value)
                if depth == 0 and issubclass(kind, named):
                    yield _Opened(root, path, value, [])
                if id(value) in known or issubclass(kind, leaves):
                    continue
                if type_info.module_of(kind).partition(".")[0] == "torch":
                    continue
                known.add(id(value))
                inner = list(islice(children(value, shapes), MOST_CHILDREN)) if depth < DEPTH else []
                one = _Opened(root, path, value, inner)
                yield one
                opened += bool(one.children)
                waiting += [(child, path + label, depth + 1) for label, child in reversed(one.children)]
            left -= opened


def _kept_at(root: Root, path: str) -> tuple[types.CodeType, int] | None:
    """Code and line that keep what a variable leads to."""
    if path.startswith("."):
        attribute = path[1:].partition("[")[0].partition(".")[0]
        return attribute_kept_at(own_codes(type(root.value)), attribute, container=False)
    return None if root.code is None else name_kept_at(root.code, root.name, container=False)


def _spoken(root: Root, path: str) -> str:
    at = _kept_at(root, path)
    return f"{root.spoken}{path}" + ("" if at is None else f" ({line_of(at[0].co_filename, at[1])})")
