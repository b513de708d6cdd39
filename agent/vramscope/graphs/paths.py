"""Finds how tensors can be reached from the roots: breadth first through containers and attributes, bounded.

Only dicts, lists and plain attributes are looked into, through the functions of the built-in types; nothing of the user's
(``__getattr__``, ``__iter__``, ``__repr__``, properties) runs.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from vramscope.graphs import classes
from vramscope.graphs.allowance import Allowance
from vramscope.graphs.roots import ATOMS, Root, is_library, locals_of

MOST_OBJECTS: Final = 50_000
LEAST_OBJECTS: Final = 5_000
"""of each tier, whatever time is left"""
MOST_MIDDLE: Final = 200_000
"""elements of a long container beyond its ends, in which is looked up which of them are wanted; some 0.1 µs each"""
MOST_OF_A_CONTAINER: Final = 2_000
"""of a long container its first and last elements are looked at"""
DEEPEST: Final = 10

_OF_CLASSES: Final = frozenset((types.MemberDescriptorType, list, dict, set, collections.deque))
"""what is looked at of a class: slots, and containers that all its objects have in common"""
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


class Found(NamedTuple):
    """What a search has found."""

    paths: dict[int, Path]
    """id of an object -> how it is reached"""
    between: dict[int, Path]
    """ids of others, which lie in a long container between the ends that are looked at -> how the container is reached"""
    counted: set[int]
    """ids of the paths of long containers between whose ends nothing wanted was overlooked"""
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
    return Found(search.paths, between, search.counted, complete)


class _Search:
    """What a search knows so far."""

    def __init__(self, wanted: set[int], time: Allowance, part: float) -> None:
        self.wanted = wanted
        self.missing = set(wanted)
        """neither reached nor seen in between"""
        self.paths: dict[int, Path] = {}
        self.between: dict[int, Path] = {}
        self.counted: set[int] = set()
        self.seen: set[int] = set()
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
            seen.add(id(value))
            queue.append((value, path))
    looked = 0
    while queue and search.missing:
        value, path = queue.popleft()
        looked += 1
        if looked > MOST_OBJECTS or (looked > LEAST_OBJECTS and not looked % 64 and search.is_over):
            return False
        if path.depth >= DEEPEST:
            continue
        ends = set()
        for label, child in children(value, search.shapes):
            kind = type(child)
            if kind in _SKIPPED or issubclass(kind, type):
                continue  # (a class's attributes are roots of their own)
            key = id(child)
            ends.add(key)
            if key in wanted and (key not in paths or _keeps_more(path, paths[key])):
                paths[key] = Path(path, path.root, label, kind, length(child), bound_of(child), path.depth + 1)
                search.missing.discard(key)
            if key not in seen and (gc.is_tracked(child) or is_array(kind)):
                seen.add(key)
                size = length(child)
                if label == path.label and kind is path.kind and size == path.size:
                    queue.append(
                        (child, path)
                    )  # one link more of a chain (``.before.before``): as deep, and called, as the last
                    continue
                queue.append((child, Path(path, path.root, label, kind, size, bound_of(child), path.depth + 1)))
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


class Shape(NamedTuple):
    """Where the objects of a class have what they hold."""

    kind: type
    attributes: Any
    """what gives their ``__dict__``; None where they have none that can be read"""
    slots: list[tuple[str, Any]]
    shared: list[tuple[str, Any]]
    """containers that are attributes of the class"""
    in_c: bool
    """they can have more, of which only the garbage collector knows (a block of pandas' has its array in no attribute)"""


Shapes = dict[int, Shape]
"""by the class's id: for the time of a search, as it keeps the classes alive"""


def shape_of(kind: type) -> Shape:
    """Read from the namespaces of the class and its bases, some hundred names; nothing of the class's own runs."""
    slots: list[tuple[str, Any]] = []
    shared: list[tuple[str, Any]] = []
    for base in classes.bases(kind):
        if classes.module_of(base) == "builtins":
            continue
        for name, slot in list(classes.namespace(base).items()):
            if type(slot) not in _OF_CLASSES or type(name) is not str or name.startswith("__"):
                continue
            (slots if type(slot) is types.MemberDescriptorType else shared).append((name, slot))
    return Shape(kind, _dict_of(kind), slots, shared, classes.keeps_in_c(kind))


def children(value: Any, shapes: Shapes | None = None) -> Iterator[tuple[str, Any]]:
    """What an object holds directly, with the words that lead there."""
    kind = type(value)
    if issubclass(kind, dict):
        items = dict.items(value)
        for key, child in _ends(items, lambda: reversed(items), dict.__len__(value)):
            yield f"[{_key(key)}]", child
            if type(key) not in ATOMS:
                yield "[key]", key
        if kind is dict:
            return
    elif issubclass(kind, (list, tuple)):
        base = list if issubclass(kind, list) else tuple
        fields = classes.namespace(kind).get("_fields") if base is tuple else None
        if type(fields) is tuple:
            yield from ((f".{field}", child) for field, child in zip(fields, tuple.__iter__(value), strict=False))
        else:
            if base.__len__(value) <= MOST_OF_A_CONTAINER:
                yield from (("[*]", child) for child in list(base.__iter__(value)))
            else:
                half = MOST_OF_A_CONTAINER // 2
                ends = (base.__getitem__(value, slice(half)), base.__getitem__(value, slice(-half, None)))
                yield from (("[*]", child) for end in ends for child in end)
        if kind in (list, tuple):
            return
    elif issubclass(kind, collections.deque):
        deque = collections.deque
        last = functools.partial(deque.__reversed__, value)
        yield from (("[*]", child) for child in _ends(deque.__iter__(value), last, deque.__len__(value)))
    elif issubclass(kind, (set, frozenset)):
        base_set = set if issubclass(kind, set) else frozenset
        yield from (("{*}", child) for child in _ends(base_set.__iter__(value), None, base_set.__len__(value)))
    elif is_array(kind):
        if value.dtype.hasobject:
            yield from (("[*]", child) for child in _ends(value.flat, None, value.size))
        return
    elif kind is types.FunctionType:
        yield from _of_function(value)
        return
    elif kind is types.CellType:
        with contextlib.suppress(ValueError):  # empty
            yield "", value.cell_contents
        return
    elif kind is types.MethodType:
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
        return
    elif kind is functools.partial:
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
        return
    elif kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        frame = getattr(value, "gi_frame", None) or getattr(value, "cr_frame", None) or getattr(value, "ag_frame", None)
        if frame is not None:
            owner = frame.f_code.co_name
            yield from ((f" {owner}() local '{name}'", child) for name, child in locals_of(frame).items())
        return
    elif kind is types.TracebackType:
        frame = value.tb_frame
        name = frame.f_code.co_name
        yield from ((f" {name}() local '{local}'", child) for local, child in locals_of(frame).items())
        yield ".tb_next", value.tb_next
        return
    elif kind is types.FrameType:
        owner = value.f_code.co_name
        yield from ((f" {owner}() local '{name}'", child) for name, child in locals_of(value).items())
        return
    elif kind is threading.local:
        # Of this thread by their names. (Of a subclass, asking could run its __init__.)
        for name, child in list(threading.local.__getattribute__(value, "__dict__").items()):
            yield f".{name}", child
    elif issubclass(kind, BaseException):
        yield ".__traceback__", BaseException.__getattribute__(value, "__traceback__")
        yield ".args", BaseException.__getattribute__(value, "args")
        yield ".__context__", BaseException.__getattribute__(value, "__context__")
    if shapes is None:
        shape = shape_of(kind)
    else:
        shape = shapes.get(id(kind)) or shapes.setdefault(id(kind), shape_of(kind))
    yield from _of_object(value, shape)


def _of_object(value: Any, shape: Shape) -> Iterator[tuple[str, Any]]:
    known = False
    kind = shape.kind
    attributes = _attributes(value, shape.attributes)
    if attributes is not None:
        known = True
        is_module = "_modules" in attributes and "_parameters" in attributes
        for name, child in list(attributes.items()):
            if is_module and name in ("_parameters", "_buffers", "_modules") and type(child) is dict:
                yield from ((f".{inner}", part) for inner, part in list(child.items()))
            elif type(name) is str:
                yield f".{name}", child
    yield from ((f".{name}", container) for name, container in shape.shared)
    for name, slot in shape.slots:
        known = True
        try:
            child = slot.__get__(value, kind)
        except (AttributeError, TypeError):
            continue
        yield f".{name}", child
    if not known or (shape.in_c and length(value) is None):
        # A type of C (lru_cache, itertools, a library's): what the garbage collector sees in it.
        for child in itertools.islice(gc.get_referents(value), MOST_OF_A_CONTAINER):
            if child is not attributes and not issubclass(type(child), type):
                yield f" in {classes.name_of(kind)}", child


def _dict_of(kind: type) -> Any:
    """The descriptor of a class's ``__dict__``; None where there is none, or a property of the user's in its place."""
    for base in classes.bases(kind):
        entry = classes.namespace(base).get("__dict__")
        if entry is not None:
            return entry if type(entry) in (types.GetSetDescriptorType, types.MemberDescriptorType) else None
    return None


def _attributes(value: Any, descriptor: Any) -> dict[str, Any] | None:
    """An object's ``__dict__``, read without running anything of its class."""
    try:
        attributes = descriptor.__get__(value, type(value)) if descriptor is not None else None
    except (AttributeError, TypeError, RuntimeError):
        return None
    return attributes if type(attributes) is dict else None


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    cells = function.__closure__
    if cells:
        for name, cell in zip(function.__code__.co_freevars, cells, strict=False):
            try:
                yield f" closure '{name}'", cell.cell_contents
            except ValueError:
                continue
    if is_library(function.__code__.co_filename) and not cells:
        return
    if function.__defaults__:
        yield " default", function.__defaults__
    if function.__kwdefaults__:
        yield " default", function.__kwdefaults__
    if function.__dict__:
        for name, child in list(function.__dict__.items()):
            yield f".{name}", child


def _ends(elements: Iterable[Any], last: Callable[[], Iterable[Any]] | None, count: int) -> list[Any]:
    """All elements, or the first and the last of many (where there is no way to begin at the ``last``, only the first).

    Never all of a million. Empty where another thread changes the container meanwhile.
    """
    try:
        if count <= MOST_OF_A_CONTAINER:
            return list(elements)
        half = MOST_OF_A_CONTAINER // 2
        if last is None:
            return list(itertools.islice(elements, MOST_OF_A_CONTAINER))
        return [*itertools.islice(elements, half), *itertools.islice(last(), half)]
    except RuntimeError:
        return []


def length(value: Any) -> int | None:
    """Elements of a built-in container (or of a class made from one); None for anything else."""
    kind = type(value)
    for base in (dict, list, tuple, set, frozenset, collections.deque):
        if issubclass(kind, base):
            return base.__len__(value)
    return value.size if is_array(kind) else None


def is_array(kind: type) -> bool:
    """An array of numpy's: where it has objects in it, the garbage collector does not see them."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is numpy.__dict__.get("ndarray")


def bound_of(value: Any) -> int | None:
    kind = type(value)
    if issubclass(kind, collections.deque):
        return collections.deque.maxlen.__get__(value)  # type: ignore[no-any-return]
    return length(value) if issubclass(kind, (tuple, frozenset)) else None


def _key(key: Any) -> str:
    return repr(key)[:60] if type(key) in (str, int, float, bool, type(None)) else classes.name_of(type(key))
