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
import time
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from vramscope.graphs.roots import ATOMS, Root, is_library, locals_of

MOST_OBJECTS: Final = 50_000
LEAST_OBJECTS: Final = 5_000
"""of each tier, whatever time is left"""
MOST_OF_A_CONTAINER: Final = 2_000
"""of a long container its first and last elements are looked at"""
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
    bounded: bool
    """cannot grow: a deque with maxlen, a tuple"""
    depth: int

    def links(self) -> list[Path]:
        """From the root to here."""
        links, link = [], self
        while link is not None:
            links.append(link)
            link = link.parent  # type: ignore[assignment]
        return links[::-1]


def find(tiers: Iterable[Iterable[Root]], wanted: set[int], deadline: float) -> tuple[dict[int, Path], bool]:
    """``id -> Path`` for the wanted objects that were reached, and whether all was looked at.

    tiers   roots, those that a user would name first; a path from an earlier tier goes before a shorter one from a later
    Cost: about 1 µs an object; at most MOST_OBJECTS a tier.
    """
    found: dict[int, Path] = {}
    seen: set[int] = set()
    complete = True
    for tier in tiers:
        if len(found) < len(wanted):
            complete = _find(tier, wanted, deadline, found, seen) and complete
    return found, complete


def _find(sources: Iterable[Root], wanted: set[int], deadline: float, found: dict[int, Path], seen: set[int]) -> bool:
    queue: collections.deque[tuple[Any, Path]] = collections.deque()
    for root in sources:
        value = root.value
        path = Path(None, root, root.name, type(value), length(value), is_bounded(value), 0)
        if id(value) in wanted:
            found.setdefault(id(value), path)
        if id(value) not in seen and type(value) not in _SKIPPED:
            seen.add(id(value))
            queue.append((value, path))
    looked = 0
    while queue and len(found) < len(wanted):
        value, path = queue.popleft()
        looked += 1
        if looked > MOST_OBJECTS or (looked > LEAST_OBJECTS and not looked % 64 and time.thread_time() > deadline):
            return False
        if path.depth >= DEEPEST:
            continue
        for label, child in children(value):
            kind = type(child)
            if kind in _SKIPPED:
                continue
            key = id(child)
            if key in wanted and (key not in found or _keeps_more(path, found[key])):
                found[key] = Path(path, path.root, label, kind, length(child), is_bounded(child), path.depth + 1)
            if key not in seen and gc.is_tracked(child):
                seen.add(key)
                queue.append(
                    (child, Path(path, path.root, label, kind, length(child), is_bounded(child), path.depth + 1))
                )
    return True


def _keeps_more(path: Path, known: Path) -> bool:
    """A container that takes more and more is the holder to name, not the variable that has its newest element."""
    return known.parent is None and path.size is not None and not path.bounded


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds directly, with the words that lead there."""
    kind = type(value)
    if issubclass(kind, dict):
        for key, child in _ends(dict.items(value), dict.__len__(value)):
            yield f"[{_key(key)}]", child
            if type(key) not in ATOMS:
                yield "[key]", key
        if kind is dict:
            return
    elif issubclass(kind, (list, tuple)):
        base = list if issubclass(kind, list) else tuple
        fields = kind.__dict__.get("_fields") if base is tuple else None
        if type(fields) is tuple:
            yield from ((f".{field}", child) for field, child in zip(fields, tuple.__iter__(value), strict=False))
        else:
            yield from (("[*]", child) for child in _ends(base.__iter__(value), base.__len__(value)))
        if kind in (list, tuple):
            return
    elif issubclass(kind, collections.deque):
        yield from (
            ("[*]", child) for child in _ends(collections.deque.__iter__(value), collections.deque.__len__(value))
        )
    elif issubclass(kind, (set, frozenset)):
        base_set = set if issubclass(kind, set) else frozenset
        yield from (("{*}", child) for child in _ends(base_set.__iter__(value), base_set.__len__(value)))
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
    elif issubclass(kind, BaseException):
        yield ".__traceback__", BaseException.__getattribute__(value, "__traceback__")
        yield ".args", BaseException.__getattribute__(value, "args")
        yield ".__context__", BaseException.__getattribute__(value, "__context__")
    yield from _of_object(value, kind)


def _of_object(value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    known = False
    attributes = attributes_of(value)
    if attributes is not None:
        known = True
        is_module = "_modules" in attributes and "_parameters" in attributes
        for name, child in list(attributes.items()):
            if is_module and name in ("_parameters", "_buffers", "_modules") and type(child) is dict:
                yield from ((f".{inner}", part) for inner, part in list(child.items()))
            elif type(name) is str:
                yield f".{name}", child
    for base in kind.__mro__:
        for name, slot in list(base.__dict__.items()):
            if type(slot) is types.MemberDescriptorType and type(name) is str and base.__module__ != "builtins":
                known = True
                try:
                    child = slot.__get__(value, kind)
                except (AttributeError, TypeError):
                    continue
                yield f".{name}", child
    if not known or kind is functools._lru_cache_wrapper:
        # A type of C (lru_cache, itertools, a library's): what the garbage collector sees in it.
        for child in itertools.islice(gc.get_referents(value), MOST_OF_A_CONTAINER):
            if not issubclass(type(child), type):
                yield f" in {kind.__name__}", child


def attributes_of(value: Any) -> dict[str, Any] | None:
    """An object's ``__dict__``, read without running anything of its class; None where it has none."""
    for base in type(value).__mro__:
        entry = base.__dict__.get("__dict__")
        if entry is not None:
            if type(entry) is not types.GetSetDescriptorType:
                return None  # a property of the user's
            try:
                attributes = entry.__get__(value, type(value))
            except (AttributeError, TypeError, RuntimeError):
                return None
            return attributes if type(attributes) is dict else None
    return None


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


def _ends(elements: Iterable[Any], count: int) -> list[Any]:
    """All elements, or the first and the last of many. Empty where another thread changes the container meanwhile."""
    try:
        if count <= MOST_OF_A_CONTAINER:
            return list(elements)
        half = MOST_OF_A_CONTAINER // 2
        return [*itertools.islice(elements, half), *collections.deque(elements, maxlen=half)]
    except RuntimeError:
        return []


def length(value: Any) -> int | None:
    """Elements of a built-in container (or of a class made from one); None for anything else."""
    kind = type(value)
    for base in (dict, list, tuple, set, frozenset, collections.deque):
        if issubclass(kind, base):
            return base.__len__(value)
    return None


def is_bounded(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, collections.deque):
        return collections.deque.maxlen.__get__(value) is not None
    return issubclass(kind, (tuple, frozenset))


def _key(key: Any) -> str:
    return repr(key)[:60] if type(key) in (str, int, float, bool, type(None)) else type(key).__name__
