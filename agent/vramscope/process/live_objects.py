"""The objects that Python's garbage collector knows, seen without harm to threads that are at work meanwhile.

``tuple(...)`` of a generator is filled where it lies, and CPython refuses to make it longer or shorter once anybody else refers to
it: a SystemError, in the thread that makes it. ``gc.get_objects()`` gives such tuples with all others. So no list of all objects
outlives a call into C here, which no other thread can interrupt: what is wanted is picked within that same call, and a tuple that
nothing holds yet is never among it.
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
"""the collector's, the oldest first"""
YOUNG: Final = (1, 0)


def living(*kinds: type) -> list[Any]:
    """All objects of these classes and of those made from them, the oldest first. Some 0.25 µs an object of the process."""
    return of_types(set().union(*map(with_subclasses, kinds)))[0]


def of_types(types: Iterable[type]) -> tuple[list[Any], int]:
    """All objects whose type is one of these (a subclass's is not; neither lists nor tuples), the oldest first; and how many there
    are of any type.

    Cost as for :func:`living`; meanwhile no other thread runs any Python.
    """
    # By identity: to look for a type itself asks its metaclass for a hash, in Python (sympy's, typing_extensions', PyTorch's own).
    wanted = frozenset(map(id, types)).__contains__
    every: list[Any] = []
    found: list[Any] = []
    count: list[int] = []
    _one_after_the_other(
        map(every.extend, map(gc.get_objects, GENERATIONS)),
        map(count.append, map(len, [every])),
        map(found.extend, [compress(every, map(wanted, map(id, map(type, every))))]),
        let_go_of=every,
    )
    return found, count[0]


def count() -> int:
    """How many objects there are. Some 20 ns each."""
    every: list[Any] = []
    counted: list[int] = []
    _one_after_the_other(
        map(every.extend, map(gc.get_objects, GENERATIONS)), map(counted.append, map(len, [every])), let_go_of=every
    )
    return counted[0]


def young(most: int) -> tuple[list[Any], set[int], bool]:
    """Objects that no full collection has seen yet, the oldest first, but tuples: of these the identities; and whether these are
    all: of more than ``most`` the newest.

    What holds a tuple leads to it, by ``gc.get_referents``. The list is one of its objects: clear it when it was read, or it holds
    itself and all of them for ever.
    """
    every: list[Any] = []
    found: list[Any] = []
    tuples: set[int] = set()
    count: list[int] = []
    _one_after_the_other(
        map(every.extend, map(gc.get_objects, YOUNG)),
        map(count.append, map(len, [every])),
        map(every.__delitem__, [slice(None, -most)]),
        map(found.extend, [compress(every, map(is_not, map(type, every), repeat(tuple)))]),
        map(tuples.update, [map(id, compress(every, map(is_, map(type, every), repeat(tuple))))]),
        let_go_of=every,
    )
    return found, tuples, count[0] <= most


def _one_after_the_other(*parts: Iterable[object], let_go_of: list[Any]) -> None:
    """Run through the parts, which are C all the way down, and empty the list: in one call, without any Python in between."""
    with collector_paused():
        try:
            deque(chain(*parts, map(partial.__call__, [partial(let_go_of.clear)])), maxlen=0)
        finally:
            let_go_of.clear()


def with_subclasses(kind: type) -> set[type]:
    """A class and all that are made from it. Some ms for the thousands of modules that a library brings."""
    found = {kind}
    stack = [kind]
    while stack:
        children: list[type] = type.__subclasses__(stack.pop())
        for child in children:
            if child not in found:
                found.add(child)
                stack.append(child)
    return found
