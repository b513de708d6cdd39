"""Finds how tensors can be reached from the roots: breadth first through containers and attributes, bounded.

Only dicts, lists and plain attributes are looked into, through the functions of the built-in types; nothing of the user's
(``__getattr__``, ``__iter__``, ``__repr__``, properties) runs.
"""

from __future__ import annotations

import collections
import gc
import types
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from vramscope.graphs import classes
from vramscope.graphs.allowance import Allowance
from vramscope.graphs.children import MOST_OF_A_CONTAINER, Shapes, bound_of, children, is_array, length
from vramscope.graphs.roots import ATOMS, Root

MOST_OBJECTS: Final = 50_000
LEAST_OBJECTS: Final = 5_000
"""of each tier, whatever time is left"""
MOST_MIDDLE: Final = 200_000
"""elements of a long container beyond its ends, in which is looked up which of them are wanted; some 0.1 µs each"""
DEEPEST: Final = 10

_SKIPPED: Final = ATOMS | {types.ModuleType, types.CodeType, types.BuiltinFunctionType, type}


class Path(NamedTuple):
    """How an object is reached; ``parent`` is None at a root."""

    parent: Path | None
    root: Root
    label: str
    """what leads here from the parent: ``.history``, ``['loss']``, ``[*]`` for any element of a sequence"""
    kind: type
    """of the object reached"""
    size: int | None
    """elements, where it is a container"""
    bound: int | None
    """elements beyond which it cannot grow: a deque's maxlen, a tuple's length"""
    depth: int

    def links(self) -> list[Path]:
        """From the root to here."""
        links, link = [], self
        while link is not None:
            links.append(link)
            link = link.parent  # type: ignore[assignment]
        return links[::-1]


def leads_through_us(path: Path, known: dict[int, bool]) -> bool:
    """Whether a path goes through an object of the agent's. ``known``: by the id of a link, for the time of one search."""
    links: list[Path] = []
    link: Path | None = path
    while link is not None and id(link) not in known:
        links.append(link)
        if classes.module_of(link.kind).partition(".")[0] == "vramscope":
            break
        link = link.parent
    ours = link is not None and known.get(id(link), True)
    known |= dict.fromkeys(map(id, links), ours)
    return ours


class Found(NamedTuple):
    """What a search has found."""

    paths: dict[int, Path]
    """id of an object -> how it is reached"""
    between: dict[int, Path]
    """ids of others, which lie in a long container between the ends that are looked at -> how the container is reached"""
    counted: set[int]
    """ids of the paths of long containers between whose ends nothing wanted was overlooked"""
    again: dict[int, Path]
    """id of a link of these paths -> another way to what it leads to, through a container that has no bound"""
    complete: bool
    """all that can be reached was looked at"""


def find(tiers: Iterable[Iterable[Root]], wanted: set[int], time: Allowance, part: float = 1.0) -> Found:
    """How the objects with the wanted ids are reached.

    tiers   roots, those that a user would name first; a path from an earlier tier goes before a shorter one from a later
    Cost: some 2 µs an object; at most MOST_OBJECTS a tier, from LEAST_OBJECTS on within that part of the time.
    """
    search = _Search(wanted, time, part)
    complete = True
    for tier in tiers:
        if search.missing:
            complete = _find(tier, search) and complete
    between = {key: path for key, path in search.between.items() if key not in search.paths}
    return Found(search.paths, between, search.counted, search.again, complete)


class _Search:
    """What a search knows so far."""

    def __init__(self, wanted: set[int], time: Allowance, part: float) -> None:
        self.wanted = wanted
        self.missing = set(wanted)
        """neither reached nor seen in between"""
        self.paths: dict[int, Path] = {}
        self.between: dict[int, Path] = {}
        self.counted: set[int] = set()
        self.again: dict[int, Path] = {}
        self.seen: dict[int, Path] = {}
        self.shapes: Shapes = {}
        self._time, self._part = time, part

    @property
    def is_over(self) -> bool:
        return self._time.over(self._part)


def _find(sources: Iterable[Root], search: _Search) -> bool:
    paths, wanted, seen = search.paths, search.wanted, search.seen
    queue: collections.deque[tuple[Any, Path]] = collections.deque()
    for root in sources:
        value = root.value
        path = Path(None, root, root.name, type(value), length(value), bound_of(value), 0)
        if id(value) in wanted:
            paths.setdefault(id(value), path)
            search.missing.discard(id(value))
        if id(value) not in seen and type(value) not in _SKIPPED:
            seen[id(value)] = path
            queue.append((value, path))
    looked = 0
    around: Path | None = None
    # (When all is found, what lies beside the last of it is looked into all the same: the newest row of a log, say.)
    while queue and (search.missing or queue[0][1].parent is around):
        value, path = queue.popleft()
        around = path.parent
        looked += 1
        if looked > MOST_OBJECTS or (looked > LEAST_OBJECTS and not looked % 64 and search.is_over):
            return False
        if path.depth >= DEEPEST:
            continue
        ends = set()
        takes_more = path.size is not None and path.bound is None
        for label, child in children(value, search.shapes):
            kind = type(child)
            if kind in _SKIPPED or issubclass(kind, type):
                continue  # (a class's attributes are roots of their own)
            key = id(child)
            ends.add(key)
            known = paths.get(key) or seen.get(key)
            if key in wanted and (key not in paths or _keeps_more(path, paths[key])):
                paths[key] = Path(path, path.root, label, kind, length(child), bound_of(child, value), path.depth + 1)
                search.missing.discard(key)
            elif takes_more and known is not None and known.parent is not path:
                search.again[id(known)] = Path(path, path.root, label, kind, None, None, path.depth + 1)
            if key not in seen and (gc.is_tracked(child) or is_array(kind)):
                size = length(child)
                if label == path.label and kind is path.kind and size == path.size:
                    seen[key] = path
                    queue.append(
                        (child, path)
                    )  # one link more of a chain (``.before.before``): as deep, and called, as the last
                    continue
                seen[key] = Path(path, path.root, label, kind, size, bound_of(child, value), path.depth + 1)
                queue.append((child, seen[key]))
        if ends and path.size is not None and path.size > MOST_OF_A_CONTAINER and not search.is_over:
            middle, whole = _between(value, ends, search.missing)
            search.missing -= middle
            search.between.update(dict.fromkeys(middle, path))
            if whole:
                search.counted.add(id(path))
    return True


def _between(container: Any, ends: set[int], wanted: set[int]) -> tuple[set[int], bool]:
    """Wanted ids between the ends of a long container, or in what lies there (records, tuples, small dicts), and whether all of
    that was looked at."""
    found: set[int] = set()
    level: list[Any] = []
    whole = (length(container) or 0) <= MOST_MIDDLE
    for base in (list, tuple):
        if issubclass(type(container), base):  # (not all of a million)
            half = MOST_OF_A_CONTAINER // 2
            level = list(base.__getitem__(container, slice(half, half + MOST_MIDDLE)))
    if not level and (length(container) or 0) <= MOST_MIDDLE:
        level = gc.get_referents(container)
    level = [thing for thing in level if id(thing) not in ends]
    for _ in range(3):
        found |= wanted.intersection(map(id, level))
        level = [thing for thing in level if gc.is_tracked(thing) and not issubclass(type(thing), type)]
        below = gc.get_referents(*level) if level else []
        whole = whole and len(below) <= MOST_MIDDLE
        level = below[:MOST_MIDDLE]
    return found, whole


def reachable(tiers: Iterable[Iterable[Root]], kinds: set[type], time: Allowance, part: float = 1.0) -> list[Any]:
    """What can be reached and is exactly of these types, the last reached first. Bounds and cost as of :func:`find`."""
    found: list[Any] = []
    seen: set[int] = set()
    shapes: Shapes = {}
    for tier in tiers:
        queue = collections.deque((root.value, 0) for root in tier if type(root.value) not in _SKIPPED)
        looked = 0
        while queue:
            value, depth = queue.popleft()
            if id(value) in seen:
                continue
            seen.add(id(value))
            looked += 1
            if looked > MOST_OBJECTS or (looked > LEAST_OBJECTS and not looked % 64 and time.over(part)):
                break
            if type(value) in kinds:
                found.append(value)
            if depth < DEEPEST:
                queue.extend(
                    (child, depth + (type(child) is not type(value)))
                    for _, child in children(value, shapes)
                    if type(child) not in _SKIPPED
                    and not issubclass(type(child), type)
                    and (gc.is_tracked(child) or is_array(type(child)))
                )
    return found[::-1]


def _keeps_more(path: Path, known: Path) -> bool:
    """A container that takes more and more is the holder to name, not the variable that has its newest element."""
    return known.parent is None and path.size is not None and path.bound is None
