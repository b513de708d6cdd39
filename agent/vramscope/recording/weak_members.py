"""Members of weak sets, without iterating over the sets each time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from itertools import compress
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakMembers(Generic[T]):
    """The live members of some weak sets, each once; retains none of them.

    Iterating over a weak set takes 2 µs, and five times that between a training's kernels. The members are the same as
    before if all of them live and the number has not changed. A member that leaves a set while it lives is noticed at the
    next change.

    only   selects members; called once for each when the sets are iterated
    """

    def __init__(self, *sets: Collection[T], only: Callable[[T], bool] | None = None) -> None:
        self._sets = sets
        self._only = only
        self._known: list[weakref.ref[T]] = []
        self._selected: list[bool] = []
        self._count = -1

    def living(self) -> list[T]:
        """Return the members in the order of the last iteration."""
        found = [one for reference in self._known if (one := reference()) is not None]
        count = sum(map(len, self._sets))
        if count != self._count or len(found) < len(self._known):
            found = list(dict.fromkeys(one for those in self._sets for one in those))
            self._known, self._count = list(map(weakref.ref, found)), count
            self._selected = [] if self._only is None else list(map(self._only, found))
        return found if self._only is None else list(compress(found, self._selected))
