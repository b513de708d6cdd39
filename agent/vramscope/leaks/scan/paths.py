"""Paths from the roots to tensors: a bounded breadth-first search through containers and attributes.

It reads dicts, lists and plain attributes through the functions of the built-in types; no code of the user
(``__getattr__``, ``__iter__``, ``__repr__``, properties) runs.
"""

from __future__ import annotations

import collections
import gc
import types
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from vramscope.leaks.holders.line_search import made_anew
from vramscope.leaks.scan import time_budget
from vramscope.leaks.scan.container_sampling import Contents, contents
from vramscope.leaks.scan.object_children import (
    MOST_OF_A_CONTAINER,
    Shapes,
    bound_of,
    children,
    length,
    length_in,
    may_hold,
)
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.process import type_info
from vramscope.process.name_roots import ATOMS, Root

MOST_OBJECTS: Final = 200_000
LEAST_OBJECTS: Final = 20_000
"""Objects that a tier visits in an ordinary process whatever the time."""
SHORT_FIRST: Final = 3 / 4
"""Share of a tier's time before long containers are searched."""
AT_ONCE: Final = 256
"""Objects between two readings of the clock."""
DEEPEST: Final = 10
RECORDS: Final = 3
"""Levels of records within a container that count as the container's own."""
MOST_OF_A_LINK: Final = 3
"""Objects that one link of a chain may consist of."""
SHARE_OF_REPEATED: Final = 1 / 4
"""Part of a link's depth that a repeated one has, so that a chain is recognized before DEEPEST."""
REPEATED: Final = 3
"""Links in a row, of several objects each, after which another one is called as the last."""

_SKIPPED: Final = ATOMS | {types.ModuleType, types.CodeType, types.BuiltinFunctionType, type}


class Path(NamedTuple):
    """Path to an object; ``parent`` is None at a root."""

    parent: Path | None
    root: Root
    label: str
    """Step from the parent: ``.history``, ``['loss']``, ``[*]`` for any element of a sequence."""
    kind: type
    """Class of the object reached."""
    size: int | None
    """Elements of a container; None for other objects."""
    bound: int | None
    """Elements beyond which it cannot grow: a deque's maxlen, a tuple's length."""
    depth: float
    """Links from the root, of which one that repeats another counts SHARE_OF_REPEATED."""

    def links(self) -> list[Path]:
        """Links from the root to here."""
        links, link = [], self
        while link is not None:
            links.append(link)
            link = link.parent  # type: ignore[assignment]
        return links[::-1]


def objects_at(links: list[Path], most: int) -> list[Any]:
    """Objects to which such links lead, from the root on. Of those at each link, the ``most`` newest are followed."""
    objects, shapes = [links[0].root.value], Shapes()
    for link in links[1:]:
        objects = [
            child
            for value in objects
            for label, child in children(value, shapes)
            if label == link.label and type(child) is link.kind
        ][-most:]
    return objects


def leads_through_us(path: Path, known: dict[int, bool]) -> bool:
    """True where a path goes through an object of the agent. ``known``: cache by the id of a link, for one search."""
    links: list[Path] = []
    link: Path | None = path
    while link is not None and id(link) not in known:
        links.append(link)
        if type_info.module_of(link.kind).partition(".")[0] == "vramscope":
            break
        link = link.parent
    ours = link is not None and known.get(id(link), True)
    known |= dict.fromkeys(map(id, links), ours)
    return ours


class FoundPaths(NamedTuple):
    """Result of a search."""

    paths: dict[int, Path]
    """Path to each object, by its id."""
    between: dict[int, Path]
    """Path to the long container of each object between the ends that are read, by the object's id."""
    long: list[tuple[Path, Contents]]
    """Containers with more elements than are read one by one."""
    again: dict[int, Path]
    """Another path to the object of a link, through an unbounded container, by the link's id."""
    complete: bool
    """True where everything reachable was searched."""


def find(
    tiers: Iterable[Iterable[Root]],
    wanted: set[int],
    time: TimeBudget,
    part: float = time_budget.ALL,
    tensors: Iterable[type] = (),
) -> FoundPaths:
    """Paths to the objects with the wanted ids.

    tiers     roots, those first that a user would name; a path from an earlier tier wins over a shorter one from a later tier
    tensors   types that are counted in long containers
    Cost: some 2 µs an object; at most MOST_OBJECTS a tier, within that part of the time (of an ordinary process LEAST_OBJECTS).
    """
    search = _Search(wanted, time, part, tensors)
    complete = True
    for tier in tiers:
        if search.missing:
            complete = _find(tier, search) and complete
    between = {key: path for key, path in search.between.items() if key not in search.paths}
    found = FoundPaths(search.paths, between, search.long, search.again, complete)
    elements = [path for path in search.objects if id(path) in search.again]
    return _through_their_containers(found, elements) if elements else found


def _through_their_containers(found: FoundPaths, objects: list[Path]) -> FoundPaths:
    """The same paths through the container where a loop's variable is one element after the other (``for callback in callbacks``).

    objects   such variables, to which another path leads
    """
    instead = {id(path): found.again[id(path)]._replace(size=path.size, bound=path.bound) for path in objects}
    """By the id of a path."""
    variables = {id(path.root) for path in objects}

    def through(path: Path) -> Path:
        if id(path.root) not in variables:
            return path
        known = instead.get(id(path))
        if known is None:
            parent = None if path.parent is None else through(path.parent)
            known = path
            if parent is not None and parent is not path.parent:
                known = path._replace(parent=parent, root=parent.root, depth=parent.depth + 1)
            instead[id(path)] = known
        return known

    paths = {key: through(path) for key, path in found.paths.items()}
    between = {key: through(path) for key, path in found.between.items()}
    long = [(through(path), contents) for path, contents in found.long]
    for path in objects:
        found.again.pop(id(path))
    again = {id(instead[key]) if key in instead else key: through(other) for key, other in found.again.items()}
    return FoundPaths(paths, between, long, again, found.complete)


class _Search:
    """State of a search."""

    def __init__(self, wanted: set[int], time: TimeBudget, part: float, tensors: Iterable[type]) -> None:
        self.wanted = wanted
        self.missing = set(wanted)
        """Ids that were not found yet."""
        self.paths: dict[int, Path] = {}
        self.between: dict[int, Path] = {}
        self.long: list[tuple[Path, Contents]] = []
        self.is_tensor = frozenset(map(id, tensors)).__contains__
        """True for the id of a tensor's type."""
        self.again: dict[int, Path] = {}
        self.objects: list[Path] = []
        """Variables that a loop rebinds."""
        self.seen: dict[int, Path] = {}
        self.shapes: Shapes = {}
        self._time, self._part = time, part

    def is_over(self, done: int, least: int) -> bool:
        return self._time.over(self._part, done, least)

    def until_over(self, share: float) -> Callable[[], bool]:
        """Returns a check whether this share of the remaining time is over."""
        end = self._time.taken + self._time.left(self._part) * share
        return lambda: self._time.taken > end


class _Long(NamedTuple):
    """A container with more elements than are read one by one, before the others are searched."""

    value: Any
    size: int
    path: Path
    ends: set[int]
    """Ids of the elements that were read."""


def _find(sources: Iterable[Root], search: _Search) -> bool:
    paths, wanted, seen = search.paths, search.wanted, search.seen
    queue: collections.deque[tuple[Any, Path]] = collections.deque()
    rows: collections.deque[tuple[Any, Path]] = collections.deque()
    """Elements of long containers: what they contain is searched after all else."""
    for root in sources:
        value = root.value
        path = Path(None, root, root.name, type(value), length(value), bound_of(value), 0)
        if id(value) in wanted:
            paths.setdefault(id(value), path)
            search.missing.discard(id(value))
        if id(value) not in seen and type(value) not in _SKIPPED:
            seen[id(value)] = path
            queue.append((value, path))
            if root.kind == "local" and root.code is not None and made_anew(root.code, root.name):
                search.objects.append(path)
    looked = unhurried = 0
    around: Path | None = None
    later: list[_Long] = []
    is_time_for_long = search.until_over(SHORT_FIRST)
    while queue or rows:
        if not queue:
            queue, rows = rows, queue
        if not search.missing and queue[0][1].parent is not around:
            # Everything is found; the neighbours of the last object, such as the newest row of a log, were searched too.
            break
        value, path = queue.popleft()
        around = path.parent
        looked += 1
        if looked > unhurried:
            unhurried = looked + AT_ONCE
            if looked > MOST_OBJECTS or search.is_over(looked, LEAST_OBJECTS):
                _look_into(later, search)
                return False
            if later and is_time_for_long():
                _look_into(later, search)
        if path.depth >= DEEPEST:
            continue
        ends = set()
        takes_more = path.size is not None and path.bound is None
        is_record = not takes_more and _is_in_what_takes_more(path)
        is_long = path.size is not None and path.size > MOST_OF_A_CONTAINER
        bound = bound_of(None, value)
        for label, child in children(value, search.shapes):
            looked += 1
            kind = type(child)
            if kind in _SKIPPED or issubclass(kind, type):
                continue  # attributes of a class are roots of their own
            key = id(child)
            ends.add(key)
            is_tensor = search.is_tensor(id(kind))
            known = paths.get(key) or seen.get(key)
            if key in wanted and (key not in paths or _keeps_more(path, paths[key])):
                size, most = (None, bound) if is_tensor else (length_in(child, value), bound_of(child, value))
                paths[key] = Path(path, path.root, label, kind, size, most, path.depth + 1)
                search.missing.discard(key)
            elif (takes_more or (is_record and is_tensor)) and known is not None and known.parent is not path:
                search.again[id(known)] = Path(path, path.root, label, kind, None, None, path.depth + 1)
            if key not in seen and not (is_tensor and _is_bare(child)) and may_hold(child):
                size = length_in(child, value)
                link = Path(path, path.root, label, kind, size, bound_of(child, value), path.depth + 1)
                before, is_chain = _link_before(link)
                if before is not None and is_chain:
                    seen[key] = before
                    queue.append((child, before))
                    continue
                seen[key] = link if before is None else link._replace(depth=path.depth + SHARE_OF_REPEATED)
                (rows if is_long else queue).append((child, seen[key]))
        if ends and is_long:
            later.append(_Long(value, path.size or 0, path, ends))
    _look_into(later, search)
    return True


def _look_into(later: list[_Long], search: _Search) -> None:
    """Search long containers, those first that have wanted objects at their ends. Each takes half of the remaining time.

    They wait until everything short was searched, or SHORT_FIRST of the time is over. A dataset of a million rows would otherwise
    leave no time for the list that grows.
    """
    for one in sorted(later, key=lambda one: search.wanted.isdisjoint(one.ends)):
        inside = contents(one.value, one.size, one.ends, search.missing, search.is_tensor, search.until_over(1 / 2))
        search.missing -= inside.wanted
        search.between.update(dict.fromkeys(inside.wanted, one.path))
        search.long.append((one.path, inside))
    later.clear()


def _link_before(link: Path) -> tuple[Path | None, bool]:
    """The link that this one repeats, and whether both belong to a chain, in which this one is as deep, and called, as that one.

    A link may consist of several objects, as that of nested iterators or of nodes in tuples does. It is one of a chain from the
    fourth in a row on. Ordinary nested structures, such as ``net.layers[*].layers[*]``, have names of their own below that.
    """
    before: Path | None = link.parent
    for count in range(1, MOST_OF_A_LINK + 1):
        if before is None:
            break
        if _is_like(link, before):
            return before, count == 1 or _repeats(link, before, (REPEATED - 1) * count + 1)
        before = before.parent
    return None, False


def _repeats(link: Path, before: Path, times: int) -> bool:
    """True where this many links in a row, up to this one, are like those up to ``before``."""
    one: Path | None = link
    other: Path | None = before
    for _ in range(times):
        if one is None or other is None or not _is_like(one, other):
            return False
        one, other = one.parent, other.parent
    return True


def _is_like(link: Path, other: Path) -> bool:
    return link.label == other.label and link.kind is other.kind and link.size == other.size


def _is_in_what_takes_more(path: Path) -> bool:
    """True for an unbounded container, or a record in one: ``rows.append((logits, labels))``."""
    link: Path | None = path
    for _ in range(RECORDS):
        if link is None:
            return False
        if link.size is not None and link.bound is None:
            return True
        link = link.parent
    return False


def _is_bare(tensor: Any) -> bool:
    """True where a tensor has no attributes."""
    return all(issubclass(type(one), type) for one in gc.get_referents(tensor))


def reachable(
    tiers: Iterable[Iterable[Root]], kinds: set[type], time: TimeBudget, part: float = time_budget.ALL
) -> tuple[list[Any], bool]:
    """Reachable objects of exactly these types, the last reached first, and whether everything reachable was searched. Bounds and
    cost as of :func:`find`."""
    found: list[Any] = []
    complete = True
    seen: set[int] = set()
    shapes: Shapes = {}
    for tier in tiers:
        queue: collections.deque[tuple[Any, int]] = collections.deque()
        rows: collections.deque[tuple[Any, int]] = collections.deque()
        looked = unhurried = 0
        above, depth, inside = None, 0, [root.value for root in tier]
        while True:
            take = rows if len(inside) >= MOST_OF_A_CONTAINER and above is not None else queue
            for thing in inside:
                looked += 1
                kind = type(thing)
                if kind in _SKIPPED or issubclass(kind, type) or id(thing) in seen:
                    continue
                seen.add(id(thing))
                if kind in kinds:
                    found.append(thing)
                    if _is_bare(thing):
                        continue
                if may_hold(thing):
                    take.append((thing, depth + (above is not None and kind is not type(above))))
            if looked > unhurried:
                unhurried = looked + AT_ONCE
                if looked > MOST_OBJECTS or time.over(part, looked, LEAST_OBJECTS):
                    complete = False
                    break
            if not queue:
                queue, rows = rows, queue
            if not queue:
                break
            above, depth = queue.popleft()
            inside = [child for _, child in children(above, shapes)] if depth < DEEPEST else []
    return found[::-1], complete


def _keeps_more(path: Path, known: Path) -> bool:
    """True where a growing container is the holder to name, not the variable that has its newest element."""
    return known.parent is None and path.size is not None and path.bound is None
