"""Tensors of one group of a scan: which are inside others, and the group that they form."""

from __future__ import annotations

import collections
import weakref
from typing import Any, Final, NamedTuple

from vramscope.leaks.autograd.graph_walk import Chains, NodeBudget
from vramscope.leaks.holders import wording
from vramscope.leaks.holders.grouping import Grouping, group_key
from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import HeldMemory, group_of
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.container_sampling import Contents
from vramscope.leaks.scan.paths import FoundPaths, Path
from vramscope.leaks.scan.storages import Storages
from vramscope.leaks.scan.tensors import parameters_of, with_gradients

MOST_NEWEST: Final = 64
"""Tensors that one step leaves in a variable, and that a list may have too."""


class TensorsInside(NamedTuple):
    """Long containers of one holder."""

    paths: frozenset[int]
    """Ids of their paths."""
    wanted: int
    """Wanted tensors between their ends, as far as these were searched."""
    contents: list[Contents]


def tensors_inside(found: FoundPaths, grouping: Grouping) -> dict[HolderKey, TensorsInside]:
    """Long containers by the key of their holder."""
    counts = collections.Counter(map(id, found.between.values()))
    inside: dict[HolderKey, TensorsInside] = {}
    for path, contents in found.long:
        element = path._replace(parent=path, label="[*]", depth=path.depth + 1)
        key = group_key(element, grouping)
        before = inside.get(key, TensorsInside(frozenset(), 0, []))
        inside[key] = TensorsInside(
            before.paths | {id(path)}, before.wanted + counts[id(path)], [*before.contents, contents]
        )
    return inside


def tensors_each(
    holder: Holder, paths: list[Path], inside: dict[HolderKey, TensorsInside], cut_short: bool, not_scanned: list[str]
) -> float:
    """Number of tensors per found path: the others are between the ends of long containers, or were too old for a scan that was
    ``cut_short``."""
    long = inside.get(holder.key)
    if long is None:
        return 1.0
    if not cut_short and all(one.is_whole for one in long.contents):
        return 1 + long.wanted / len(paths)
    if not all(one.is_whole for one in long.contents):
        through, elements = (
            sum(getattr(one, name) for one in long.contents) for name in ("looked_through", "elements")
        )
        not_scanned.append(
            f"all but {through:,} of {elements:,} elements of '{holder.name}': a sample tells what they have"
        )
    parents = {id(path.parent): path.parent for path in paths}
    elsewhere = {
        key for key, parent in parents.items() if parent is None or long.paths.isdisjoint(map(id, parent.links()))
    }
    beside = sum(id(path.parent) in elsewhere for path in paths)
    return max(1.0, (beside + sum(one.tensors for one in long.contents)) / len(paths))


def also_in(paths: list[Path], again: dict[int, Path], grouping: Grouping) -> frozenset[HolderKey]:
    """Keys of unbounded containers that have all of it too, such as the list whose newest element is in a variable."""
    if not again or len(paths) > MOST_NEWEST:
        return frozenset()
    others = [{group_key(again[id(link)], grouping) for link in path.links() if id(link) in again} for path in paths]
    return frozenset(set.intersection(*others) - {group_key(paths[0], grouping)})


def group_of_orphans(
    orphans: list[Any], known: Storages, place: tuple[str, int, str], chains: Chains | None
) -> HeldMemory:
    """Group of parameters in a cycle through autograd's nodes, in C++, which no collector sees."""
    file, line, function = place
    words = "param.grad -> its graph -> param, in C++: of backward(create_graph=True)"
    holder = wording.nameless_holder(
        HolderKey(HolderKind.CREATE_GRAPH, function, file), "param.grad", words, [words], file, line, function
    )
    group = group_of(holder, with_gradients(orphans), known, NodeBudget(chains))
    group.cyclic = True
    return group


def group_of_models(holder: Holder, modules: list[Any], known: Storages, budget: NodeBudget) -> HeldMemory:
    """Group of whole models: their parameters and gradients count as any other tensor does."""
    held = [one for module in modules for one in with_gradients(parameters_of(module))]
    group = group_of(holder, held, without(known, held), budget)
    group.models = len(modules)
    return group


def without(known: Storages, tensors: list[Any]) -> Storages:
    own: Storages = {}
    for tensor in tensors:
        storages.add(own, tensor)
    return {storage: size for storage, size in known.items() if storage not in own}


def alive(references: list[weakref.ref[Any]]) -> list[Any]:
    """Live tensors. A function of its own, as owners are found by counting references: a local variable more would count."""
    return [tensor for reference in references if (tensor := reference()) is not None]


def is_written(tensor: Any) -> bool:
    """True where the newest operation has written into a part of it: ``memory[2:5] = x``, ``memory[index] = x``."""
    name = type(tensor.grad_fn).__name__
    return name.startswith(("CopySlices", "IndexPutBackward")) and bool(tensor._version)


def hold_memory(tensors: list[Any]) -> bool:
    """Graphs always; plain tensors from POLICY.plain_bytes on (to examine a model's statistics would take too long)."""
    total = 0
    for tensor in tensors:
        if not tensor.is_leaf:
            return True
        found = storages.storage_of(tensor)
        total += found[1] if found else 0
        if total >= POLICY.plain_bytes:
            return True
    return False
