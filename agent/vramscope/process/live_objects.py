"""Lists objects that Python's garbage collector knows, without harm to threads that run meanwhile.

CPython fills ``tuple(...)`` of a generator in place, and cannot resize it once another reference exists: the thread that
makes it gets a SystemError. ``gc.get_objects()`` returns such tuples with all others. So no list of all objects outlives a
call into C here, which no other thread can interrupt. The wanted objects are selected within that same call, and a tuple
under construction is never among them.

"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import chain, compress, repeat
from operator import is_, is_not
from typing import Any, Final

from vramscope.process.gc_pause import collector_paused

GENERATIONS: Final = (2, 1, 0)
"""Generations of the collector, the oldest first."""
YOUNG: Final = (1, 0)


def living(*kinds: type) -> list[Any]:
    """Return all objects of these classes and their subclasses, the oldest first. About 0.25 µs per object of the process."""
    return of_types(set().union(*map(with_subclasses, kinds)))[0]


def of_types(types: Iterable[type]) -> tuple[list[Any], int]:
    """Return all objects whose type is one of these, the oldest first, and the number of objects of any type.

    Subclasses, lists and tuples are not included. Cost as for :func:`living`; no other thread runs Python meanwhile.

    """
    # By identity: a type's hash may call Python code of its metaclass (sympy's, typing_extensions', PyTorch's).
    wanted = frozenset(map(id, types)).__contains__
    every: list[Any] = []
    found: list[Any] = []
    count: list[int] = []
    _run_uninterrupted(
        map(every.extend, map(gc.get_objects, GENERATIONS)),
        map(count.append, map(len, [every])),
        map(found.extend, [compress(every, map(wanted, map(id, map(type, every))))]),
        clear_after=every,
    )
    return found, count[0]


def count() -> int:
    """Return the number of objects. About 20 ns each."""
    every: list[Any] = []
    counted: list[int] = []
    _run_uninterrupted(
        map(every.extend, map(gc.get_objects, GENERATIONS)), map(counted.append, map(len, [every])), clear_after=every
    )
    return counted[0]


def young(most: int) -> tuple[list[Any], set[int], bool]:
    """Return objects that no full collection has seen, the oldest first; the ids of tuples among them; and whether these
    are all.

    Tuples are returned by id only. If there are more than ``most`` objects, the newest are returned. ``gc.get_referents``
    of a tuple's owner leads to it. The list is one of the objects itself: clear it after use, or it retains itself and all
    of them.

    """
    every: list[Any] = []
    found: list[Any] = []
    tuples: set[int] = set()
    count: list[int] = []
    _run_uninterrupted(
        map(every.extend, map(gc.get_objects, YOUNG)),
        map(count.append, map(len, [every])),
        map(every.__delitem__, [slice(None, -most)]),
        map(found.extend, [compress(every, map(is_not, map(type, every), repeat(tuple)))]),
        map(tuples.update, [map(id, compress(every, map(is_, map(type, every), repeat(tuple))))]),
        clear_after=every,
    )
    return found, tuples, count[0] <= most


def _run_uninterrupted(*parts: Iterable[object], clear_after: list[Any]) -> None:
    """Consume iterables that are implemented in C, then clear the list, in one call without any Python code in between."""
    with collector_paused():
        try:
            deque(chain(*parts, map(partial.__call__, [partial(clear_after.clear)])), maxlen=0)
        finally:
            clear_after.clear()


def with_subclasses(kind: type) -> set[type]:
    """Return a class and all its subclasses. Some ms for the thousands of modules of a library."""
    found = {kind}
    stack = [kind]
    while stack:
        children: list[type] = type.__subclasses__(stack.pop())
        for child in children:
            if child not in found:
                found.add(child)
                stack.append(child)
    return found
