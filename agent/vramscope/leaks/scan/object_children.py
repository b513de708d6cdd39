"""What an object refers to directly, read through the functions of the built-in types: no code of the user runs.

Dicts, sequences, sets, attributes, slots, closures, frames, exceptions; of a C type what the garbage collector sees in it.
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
from vramscope.process.frames import is_library, is_running, locals_of
from vramscope.process.name_roots import ATOMS, OF_MODULES

MOST_OF_A_CONTAINER: Final = 2_000
"""Elements of a container that are read one by one; of a longer one the first and the last."""
_OF_CLASSES: Final = frozenset((types.MemberDescriptorType, list, dict, set, collections.deque))
"""Members of a class that are read: slots, and containers that all its objects share."""
CACHED: Final = " in lru_cache"
"""Label of what a cached function retains."""
_QUEUES: Final = (("queue", "maxsize"), ("asyncio", "_maxsize"))
"""Modules with a class Queue, and its attribute with the bound."""


class Shape(NamedTuple):
    """Where the objects of a class store references."""

    kind: type
    attributes: Any
    """Descriptor of their ``__dict__``; None where they have none that can be read."""
    slots: list[tuple[str, Any]]
    shared: list[tuple[str, Any]]
    """Containers that are attributes of the class."""
    in_c: bool
    """True where they can have references that only the garbage collector sees, such as the array of a pandas block."""


Shapes = dict[int, Shape]
"""By the class's id, for the time of a search, as it keeps the classes alive."""
Child = tuple[str, Any]
"""Label and object."""


def shape_of(kind: type) -> Shape:
    """Shape from the namespaces of the class and its bases, about a hundred names; no code of the class runs."""
    slots: list[tuple[str, Any]] = []
    shared: list[tuple[str, Any]] = []
    for base in type_info.bases(kind):
        if type_info.module_of(base) == "builtins":
            continue
        for name, slot in list(type_info.namespace(base).items()):
            if type(slot) not in _OF_CLASSES or type(name) is not str or name.startswith("__"):
                continue
            (slots if type(slot) is types.MemberDescriptorType else shared).append((name, slot))
    return Shape(kind, type_info.dict_of(kind), slots, shared, type_info.keeps_in_c(kind))


def children(value: Any, shapes: Shapes | None = None) -> Iterator[Child]:
    """What an object refers to directly, each with the label that leads there."""
    kind = type(value)
    whole = _WHOLE.get(kind)
    if whole is not None:
        yield from whole(value)
        return
    for base, read in _BY_BASE:
        if issubclass(kind, base):
            yield from read(value)
            break
    else:
        if is_array(kind):
            if value.dtype.hasobject:
                yield from (("[*]", child) for child in _ends(value.flat, None, value.size))
            return
        if kind is threading.local:
            # Variables of this thread by their names. (Of a subclass, reading could run its __init__.)
            for name, child in list(threading.local.__getattribute__(value, "__dict__").items()):
                yield f".{name}", child
    if shapes is None:
        shape = shape_of(kind)
    else:
        shape = shapes.get(id(kind)) or shapes.setdefault(id(kind), shape_of(kind))
    yield from _of_object(value, shape)


def _of_dict(value: Any) -> Iterator[Child]:
    items = dict.items(value)
    for key, child in _ends(items, lambda: reversed(items), dict.__len__(value)):
        yield f"[{_key(key)}]", child
        if type(key) not in ATOMS:
            yield "[key]", key


def _of_list(value: Any) -> Iterator[Child]:
    return _of_sequence(value, list)


def _of_tuple(value: Any) -> Iterator[Child]:
    fields = type_info.namespace(type(value)).get("_fields")
    if type(fields) is tuple:
        return ((f".{field}", child) for field, child in zip(fields, tuple.__iter__(value), strict=False))
    return _of_sequence(value, tuple)


def _of_sequence(value: Any, base: Any) -> Iterator[Child]:
    if base.__len__(value) <= MOST_OF_A_CONTAINER:
        yield from (("[*]", child) for child in list(base.__iter__(value)))
        return
    half = MOST_OF_A_CONTAINER // 2
    ends = (base.__getitem__(value, slice(half)), base.__getitem__(value, slice(-half, None)))
    yield from (("[*]", child) for end in ends for child in end)


def _of_deque(value: Any) -> Iterator[Child]:
    deque = collections.deque
    last = functools.partial(deque.__reversed__, value)
    return (("[*]", child) for child in _ends(deque.__iter__(value), last, deque.__len__(value)))


def _of_set(value: Any) -> Iterator[Child]:
    base: Any = set if issubclass(type(value), set) else frozenset
    return (("{*}", child) for child in _ends(base.__iter__(value), None, base.__len__(value)))


def _of_queue(value: Any) -> Iterator[Child]:
    return (("[*]", child) for child in _ends(in_queue(value), None, length(value) or 0))


def _of_exception(value: Any) -> Iterator[Child]:
    for name in ("__traceback__", "args", "__cause__", "__context__"):
        yield f".{name}", BaseException.__getattribute__(value, name)


def _of_weak_keys(value: Any) -> Iterator[Child]:
    kept = (type_info.attributes_of(value, type_info.dict_of(type(value))) or {}).get("data")
    if type(kept) is dict:
        yield from (("[*]", child) for child in _ends(kept.values(), lambda: reversed(kept.values()), len(kept)))


def _of_cell(value: Any) -> Iterator[Child]:
    with contextlib.suppress(ValueError):  # empty
        yield "", value.cell_contents


def _of_method(value: Any) -> Iterator[Child]:
    yield ".__self__", value.__self__
    yield ".__func__", value.__func__


def _of_partial(value: Any) -> Iterator[Child]:
    yield ".func", value.func
    yield ".args", value.args
    yield ".keywords", value.keywords


def _of_generator(value: Any) -> Iterator[Child]:
    frame = getattr(value, "gi_frame", None) or getattr(value, "cr_frame", None) or getattr(value, "ag_frame", None)
    if frame is not None:
        yield from _of_frame(frame)


def _of_traceback(value: Any) -> Iterator[Child]:
    yield from _of_frame(value.tb_frame)
    yield ".tb_next", value.tb_next


def _of_frame(value: Any) -> Iterator[Child]:
    owner = value.f_code.co_name
    yield from ((f" {owner}() local '{name}'", child) for name, child in locals_of(value).items())
    caller = value.f_back
    # A frame that something refers to keeps those of its callers, also when all of them have returned.
    if caller is not None and not is_running(caller):
        yield " caller", caller


def _of_object(value: Any, shape: Shape) -> Iterator[tuple[str, Any]]:
    known = False
    kind = shape.kind
    attributes = type_info.attributes_of(value, shape.attributes)
    if attributes is not None:
        known = True
        is_module = "_modules" in attributes and "_parameters" in attributes
        for name, child in list(attributes.items()):
            if is_module and name in OF_MODULES and type(child) is dict:
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
                yield CACHED if kind is functools._lru_cache_wrapper else f" in {type_info.name_of(kind)}", child


def attributes_of(value: Any) -> dict[str, Any] | None:
    """An object's ``__dict__``; None if it has none that can be read without running code of its class."""
    return type_info.attributes_of(value, type_info.dict_of(type(value)))


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
    """All elements, or the first and the last of many; only the first where ``last`` is None.

    Empty where another thread changes the container meanwhile.
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
    """Elements of a SimpleQueue. Only C knows them: up to Python 3.12 as a list, later one by one."""
    attributes = type_info.attributes_of(value, type_info.dict_of(type(value)))
    inside = [one for one in gc.get_referents(value) if one is not attributes and not issubclass(type(one), type)]
    if sys.version_info < (3, 13):
        inside = [element for one in inside if type(one) is list for element in one]
    yield from inside


def length(value: Any) -> int | None:
    """Number of elements of a built-in container, or of a class made from one; None for anything else."""
    kind = type(value)
    for base in (dict, list, tuple, set, frozenset, collections.deque):
        if issubclass(kind, base):
            return base.__len__(value)
    if issubclass(kind, queue.SimpleQueue):
        return queue.SimpleQueue.qsize(value)
    return value.size if is_array(kind) else None


def length_in(value: Any, parent: Any) -> int | None:
    """Number of elements as of :func:`length`; of what a bounded cached function retains, the number of its entries."""
    if type(parent) is functools._lru_cache_wrapper and bound_of(value, parent) is not None:
        return min(functools._lru_cache_wrapper.cache_info(parent).currsize, MOST_OF_A_CONTAINER)
    return length(value)


def may_hold(value: Any) -> bool:
    """True where an object can contain others: what the garbage collector tracks, an array, and ``torch.return_types`` such as
    the result of ``torch.max(x, 1)``, which C makes untracked."""
    kind = type(value)
    return gc.is_tracked(value) or is_array(kind) or (kind is not tuple and issubclass(kind, tuple))


def is_array(kind: type) -> bool:
    """True for numpy's array: objects in it are invisible to the garbage collector."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is numpy.__dict__.get("ndarray")


def bound_of(value: Any, parent: Any = None) -> int | None:
    """Elements beyond which a container cannot grow. A queue's or a cached function's ``parent`` knows its bound."""
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


_Reader = Callable[[Any], Iterator[Child]]
_BY_BASE: Final[tuple[tuple[type | tuple[type, ...], _Reader], ...]] = (
    (dict, _of_dict),
    (list, _of_list),
    (tuple, _of_tuple),
    (collections.deque, _of_deque),
    ((set, frozenset), _of_set),
    (queue.SimpleQueue, _of_queue),
    (BaseException, _of_exception),
)
"""Readers of a class and those made from it, whose objects can have attributes besides."""
_WHOLE: Final[dict[type, _Reader]] = {
    dict: _of_dict,
    list: _of_list,
    tuple: _of_tuple,
    weakref.WeakKeyDictionary: _of_weak_keys,
    types.FunctionType: _of_function,
    types.CellType: _of_cell,
    types.MethodType: _of_method,
    functools.partial: _of_partial,
    types.GeneratorType: _of_generator,
    types.CoroutineType: _of_generator,
    types.AsyncGeneratorType: _of_generator,
    types.TracebackType: _of_traceback,
    types.FrameType: _of_frame,
}
"""Readers of exactly this class, which read all there is."""
