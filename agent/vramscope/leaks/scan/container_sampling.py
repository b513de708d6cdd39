"""Content of a container that is too long to read each element: which wanted objects it has, and how many tensors.

Functions of C search the newest elements, as far as the time allows; a sample of the older ones shows how many tensors they
have. Elements without tensors count as none.
"""

from __future__ import annotations

import collections
import gc
import queue
from collections.abc import Callable, Iterator
from itertools import compress, islice
from operator import not_
from typing import Any, Final, NamedTuple

from vramscope.leaks.scan.object_children import in_queue, is_array, may_hold

MOST_ELEMENTS: Final = 200_000
"""Elements that are searched, at about 0.1 µs each."""
AT_ONCE: Final = 2_000
"""Elements between two readings of the clock."""
SAMPLE: Final = 1_000
"""Sampled elements of those for which no time is left."""
BELOW: Final = 3
"""Levels of records, tuples and small dicts within an element."""
MOST_BELOW: Final = 200_000


class Contents(NamedTuple):
    wanted: set[int]
    """Ids of the wanted objects beyond the ends that are read one by one."""
    tensors: int
    """All tensors in it, including those at the ends."""
    elements: int
    looked_through: int
    """Elements that were searched."""
    is_whole: bool
    """True where every element was searched and nothing extrapolated."""


def contents(
    container: Any,
    size: int,
    ends: set[int],
    wanted: set[int],
    tensors: Callable[[int], bool],
    is_over: Callable[[], bool],
) -> Contents:
    """Content of a long container with ``size`` elements.

    ends      ids of the elements that are read one by one
    tensors   True for the id of a tensor's type
    """
    found: set[int] = set()
    inside: set[int] = set()
    looked, whole, more = 0, True, 0
    try:
        elements = _newest_first(container)
        while looked < min(size, MOST_ELEMENTS) and not (looked and is_over()):
            level = list(islice(elements, AT_ONCE))
            if not level:
                break
            looked += len(level)
            found |= wanted.intersection(map(id, level))
            records = _others(level, tensors, inside)
            whole = (
                _look_below([one for one in records if id(one) not in ends], tensors, inside, wanted, found) and whole
            )
            _look_below([one for one in records if id(one) in ends], tensors, inside)
        if looked < size:
            sampled: set[int] = set()
            sample = list(islice(elements, 0, None, 1 + (size - looked) // SAMPLE))
            _look_below(_others(sample, tensors, sampled), tensors, sampled)
            more = round(len(sampled) * (size - looked) / max(1, len(sample)))
    except RuntimeError:  # another thread changes it
        whole = False
    return Contents(found, len(inside) + more, size, looked, whole and looked >= size)


def _others(level: list[Any], tensors: Callable[[int], bool], inside: set[int]) -> list[Any]:
    """Add ids of tensors to ``inside``. Returns other objects that may contain some."""
    are = list(map(tensors, map(id, map(type, level))))
    inside.update(map(id, compress(level, are)))
    others = compress(level, map(not_, are))
    return [thing for thing in others if may_hold(thing) and not issubclass(type(thing), type)]


def _look_below(
    records: list[Any],
    tensors: Callable[[int], bool],
    inside: set[int],
    wanted: frozenset[int] | set[int] = frozenset(),
    found: set[int] | None = None,
) -> bool:
    """Add ids of tensors to ``inside`` and of wanted objects to ``found``. True where everything was searched."""
    whole = True
    for _ in range(BELOW):
        if not records:
            break
        below = gc.get_referents(*records)
        whole = whole and len(below) <= MOST_BELOW
        del below[MOST_BELOW:]
        if found is not None:
            found |= wanted.intersection(map(id, below))
        records = _others(below, tensors, inside)
    return whole


def _newest_first(container: Any) -> Iterator[Any]:
    """Elements, the newest first where the container is ordered; of a dict pairs of key and value."""
    kind = type(container)
    elements: Any = ()
    if issubclass(kind, dict):
        elements = reversed(dict.items(container))
    elif issubclass(kind, list):
        elements = list.__reversed__(container)
    elif issubclass(kind, tuple):
        elements = reversed(tuple.__getitem__(container, slice(None)))
    elif issubclass(kind, collections.deque):
        elements = collections.deque.__reversed__(container)
    elif issubclass(kind, set):
        elements = set.__iter__(container)
    elif issubclass(kind, frozenset):
        elements = frozenset.__iter__(container)
    elif issubclass(kind, queue.SimpleQueue):
        elements = in_queue(container)
    elif is_array(kind) and container.dtype.hasobject:
        elements = container.flat
    return iter(elements)
