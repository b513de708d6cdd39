"""References within a set of objects that lead to some tensors.

Counting references, as Python's own collector does, answers two questions: whether anything outside the set refers to one of
the objects (it has more references than the set explains), and what such an object keeps alive. The rest is a reference cycle.
"""

from __future__ import annotations

import gc
import sys
from typing import Any


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
        references = sys.getrefcount(thing) - 2 - (lists if key in tensors else 1) - len(parents[key])
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
