"""References within a set of objects that lead to some tensors.

Counting references, as Python's own collector does, answers two questions: whether anything outside the set refers to one of
the objects (it has more references than the set explains), and what such an object keeps alive. The rest is a reference cycle.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from vramscope.process.reference_counts import OF_VARIABLE


def parents(closure: dict[int, Any]) -> dict[int, list[int]]:
    parents: dict[int, list[int]] = {key: [] for key in closure}
    for key, thing in closure.items():
        for child in gc.get_referents(thing):
            if id(child) in parents:
                parents[id(child)].append(key)
    return parents


def ancestors(start: set[int], parents: dict[int, list[int]]) -> set[int]:
    """Objects from which these are reached, and these."""
    found, stack = set(start), list(start)
    while stack:
        for parent in parents[stack.pop()]:
            if parent not in found:
                found.add(parent)
                stack.append(parent)
    return found


def held_from_outside(
    closure: dict[int, Any], parents: dict[int, list[int]], tensors: set[int], lists: int
) -> set[int]:
    """Objects with more references than the set explains."""
    import torch

    outside = set()
    for key in closure:
        thing = closure[key]
        # ours: the variable and the call; the closure, and for the tensors the lists that they are in
        references = sys.getrefcount(thing) - OF_VARIABLE - (lists if key in tensors else 1) - len(parents[key])
        if issubclass(type(thing), torch.Tensor) and thing._use_count() > 1:
            references -= 1  # the C++ side has one while it is shared
        if references > 0:
            outside.add(key)
    return outside


def reached(start: set[int], closure: dict[int, Any]) -> set[int]:
    reached, stack = set(start), list(start)
    while stack:
        for child in gc.get_referents(closure[stack.pop()]):
            if id(child) in closure and id(child) not in reached:
                reached.add(id(child))
                stack.append(id(child))
    return reached


def shortest_path(start: Any, end: Any, closure: dict[int, Any]) -> list[Any]:
    """Objects from one to the other, both included, along references within the set; empty if there is no path."""
    came_from, level = {id(start): 0}, [id(start)]
    while level and id(end) not in came_from:
        below = []
        for key in level:
            for child in gc.get_referents(closure[key]):
                if id(child) in closure and id(child) not in came_from:
                    came_from[id(child)] = key
                    below.append(id(child))
        level = below
    path, key = [], id(end) if id(end) in came_from else 0
    while key:
        path.append(closure[key])
        key = came_from[key]
    return path[::-1]
