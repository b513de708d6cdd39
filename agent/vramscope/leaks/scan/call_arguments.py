"""Arguments of a model's call: a cache of keys and values grows from call to call by design, and is no leak."""

from __future__ import annotations

import collections
from typing import Any, Final

from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.object_children import Shapes, children
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.process.name_roots import ATOMS

MOST_OBJECTS: Final = 4_000
"""Objects that are visited, at about 2 µs each."""
DEEPEST: Final = 6
"""Levels below the arguments. ``past_key_values.layers[*].keys`` is five deep."""


def argument_storages(args: tuple[Any, ...], kwargs: dict[str, Any], kinds: TensorKinds) -> Storages:
    """Storages of the tensors in the arguments, some levels deep. No code of the user runs, and no tensor is kept."""
    from torch._C import DisableTorchFunction

    found: Storages = {}
    shapes: Shapes = {}
    queue: collections.deque[tuple[Any, int]] = collections.deque(((args, 0), (kwargs, 0)))
    seen: set[int] = set()
    with DisableTorchFunction():
        while queue and len(seen) < MOST_OBJECTS:
            value, depth = queue.popleft()
            if id(value) in seen or type(value) in ATOMS:
                continue
            seen.add(id(value))
            if kinds.owns_memory(type(value)):
                storages.add(found, value)
            elif depth < DEEPEST:
                queue.extend((child, depth + 1) for _, child in children(value, shapes))
    return found


def is_argument(group: HeldMemory, given: Storages) -> bool:
    """True where most of what a holder retains is among the arguments."""
    return (
        sum(size for place, size in group.own.items() if place in given) > POLICY.call_argument_share * group.own_bytes
    )
