"""What is in some weak sets, without going through them each time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from itertools import compress
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakMembers(Generic[T]):
    """Those of some weak sets that live, each once; keeps nothing alive.

    A weak set takes 2 µs to go through, and five times that between a training's kernels. Its members are the same as last time
    where all of them live and none has come: what leaves a set before it dies is seen with the next that comes or dies.

    only   which of them are meant; each is asked when the sets are gone through
    """

    def __init__(self, *sets: Collection[T], only: Callable[[T], bool] | None = None) -> None:
        self._sets = sets
        self._only = only
        self._known: list[weakref.ref[T]] = []
        self._chosen: list[bool] = []
        self._count = -1

    def living(self) -> list[T]:
        """In the order of the sets as they were last gone through."""
        found = [one for reference in self._known if (one := reference()) is not None]
        count = sum(map(len, self._sets))
        if count != self._count or len(found) < len(self._known):
            found = list(dict.fromkeys(one for those in self._sets for one in those))
            self._known, self._count = list(map(weakref.ref, found)), count
            self._chosen = [] if self._only is None else list(map(self._only, found))
        return found if self._only is None else list(compress(found, self._chosen))
