"""What an object holds directly, read through the functions of the built-in types: nothing of the user's runs.

Dicts, sequences, sets, attributes, slots, closures, frames, exceptions; for a type of C what the garbage collector sees in it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from vramscope.process import type_info
from vramscope.process.frames import is_library, locals_of
from vramscope.process.name_roots import ATOMS

MOST_OF_A_CONTAINER: Final = 2_000
"""of a long container its first and last elements are looked at"""
_OF_CLASSES: Final = frozenset((types.MemberDescriptorType, list, dict, set, collections.deque))
"""what is looked at of a class: slots, and containers that all its objects have in common"""
_QUEUES: Final = (("queue", "maxsize"), ("asyncio", "_maxsize"))
"""modules with a class Queue, and where it says how many it takes"""


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
    for base in type_info.bases(kind):
        if type_info.module_of(base) == "builtins":
            continue
        for name, slot in list(type_info.namespace(base).items()):
            if type(slot) not in _OF_CLASSES or type(name) is not str or name.startswith("__"):
                continue
            (slots if type(slot) is types.MemberDescriptorType else shared).append((name, slot))
    return Shape(kind, _dict_of(kind), slots, shared, type_info.keeps_in_c(kind))


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
        fields = type_info.namespace(kind).get("_fields") if base is tuple else None
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
    elif issubclass(kind, queue.SimpleQueue):
        yield from (("[*]", child) for child in _ends(in_queue(value), None, length(value) or 0))
    elif is_array(kind):
        if value.dtype.hasobject:
            yield from (("[*]", child) for child in _ends(value.flat, None, value.size))
        return
    elif kind is weakref.WeakKeyDictionary:
        kept = (_attributes(value, _dict_of(kind)) or {}).get("data")
        if type(kept) is dict:
            yield from (("[*]", child) for child in _ends(kept.values(), lambda: reversed(kept.values()), len(kept)))
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
                yield f" in {type_info.name_of(kind)}", child


def _dict_of(kind: type) -> Any:
    """The descriptor of a class's ``__dict__``; None where there is none, or a property of the user's in its place."""
    for base in type_info.bases(kind):
        entry = type_info.namespace(base).get("__dict__")
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
    defaults = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for name, child in (*zip(names, defaults, strict=False), *list((function.__kwdefaults__ or {}).items())):
        yield f" default '{name}'", child
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


def in_queue(value: Any) -> Iterator[Any]:
    """Only C knows what is in it: up to Python 3.12 a list of the elements, and later the elements themselves."""
    attributes = _attributes(value, _dict_of(type(value)))
    inside = [one for one in gc.get_referents(value) if one is not attributes and not issubclass(type(one), type)]
    if sys.version_info < (3, 13):
        inside = [element for one in inside if type(one) is list for element in one]
    yield from inside


def length(value: Any) -> int | None:
    """Elements of a built-in container (or of a class made from one); None for anything else."""
    kind = type(value)
    for base in (dict, list, tuple, set, frozenset, collections.deque):
        if issubclass(kind, base):
            return base.__len__(value)
    if issubclass(kind, queue.SimpleQueue):
        return queue.SimpleQueue.qsize(value)
    return value.size if is_array(kind) else None


def may_hold(value: Any) -> bool:
    """Whether something can be in it: what the garbage collector tracks, an array, and several results in one, as
    ``torch.max(x, 1)`` gives them (``torch.return_types``), which C makes without telling the collector."""
    kind = type(value)
    return gc.is_tracked(value) or is_array(kind) or (kind is not tuple and issubclass(kind, tuple))


def is_array(kind: type) -> bool:
    """An array of numpy's: where it has objects in it, the garbage collector does not see them."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is numpy.__dict__.get("ndarray")


def bound_of(value: Any, parent: Any = None) -> int | None:
    """Elements beyond which a container cannot grow; of a queue's own, or a cached function's, as its ``parent`` says."""
    kind = type(value)
    for name, attribute in _QUEUES:
        bounded = getattr(sys.modules.get(name), "Queue", None)
        if bounded is not None and issubclass(type(parent), bounded):
            most = parent.__dict__.get(attribute)
            return most if type(most) is int and most > 0 else None
    if type(parent) is functools._lru_cache_wrapper:
        return functools._lru_cache_wrapper.cache_info(parent).maxsize or None
    if issubclass(kind, collections.deque):
        return collections.deque.maxlen.__get__(value)  # type: ignore[no-any-return]
    return length(value) if issubclass(kind, (tuple, frozenset)) else None


def _key(key: Any) -> str:
    return repr(key)[:60] if type(key) in (str, int, float, bool, type(None)) else type_info.name_of(type(key))
