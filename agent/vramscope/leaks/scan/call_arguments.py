"""What the call of a model is given: a cache of keys and values grows from call to call by design, and is no leak."""

from __future__ import annotations

import collections
from typing import Any, Final

from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.object_children import Shapes, children
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.process.name_roots import ATOMS

MOST_OBJECTS: Final = 4_000
"""some 2 µs each"""
DEEPEST: Final = 6
"""``past_key_values.layers[*].keys`` lies five deep"""


def given_storages(args: tuple[Any, ...], kwargs: dict[str, Any], kinds: TensorKinds) -> Storages:
    """Of the tensors in the arguments and in what they hold, some levels deep. Nothing of the user's runs, none is kept."""
    found: Storages = {}
    shapes: Shapes = {}
    queue: collections.deque[tuple[Any, int]] = collections.deque(((args, 0), (kwargs, 0)))
    seen: set[int] = set()
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


def is_given(group: Group, given: Storages) -> bool:
    """Whether most of what a holder keeps is among ``given``."""
    return (
        sum(size for place, size in group.own.items() if place in given) > POLICY.call_argument_share * group.own_bytes
    )
