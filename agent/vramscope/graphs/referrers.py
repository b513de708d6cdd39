"""For tensors that no variable leads to: asks the garbage collector who refers to them, upwards, until it ends.

It ends at somebody's name (a library's global, a class, a function), at an object that C code holds, or nowhere: then the
objects refer only to each other, a reference cycle that waits for the garbage collector. That is found by counting
references, as the collector itself does, so nothing has to be collected, and the user's ``gc`` settings do not matter.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
import time
import types
from typing import Any, Final

from vramscope.graphs import lines, roots
from vramscope.graphs.holders import Codes, Holder
from vramscope.graphs.paths import children

MOST_TENSORS: Final = 48
"""traced upwards; the others of the same shapes are taken to be alike"""
MOST_OBJECTS: Final = 4_000
DEEPEST: Final = 8


@dataclasses.dataclass
class Answer:
    """Who holds some tensors. Clear ``tensors`` when it was read."""

    holder: Holder
    tensors: list[Any]
    cyclic: bool


def trace(tensors: list[Any], codes: Codes, deadline: float) -> tuple[list[Answer], bool]:
    """Answers for the tensors (the largest are traced), and whether all was looked at.

    Cost: one pass over all objects of the process a level, at most DEEPEST, some 30 ms each at 300,000 objects.
    """
    chosen = sorted(tensors, key=lambda tensor: -tensor.numel())[:MOST_TENSORS]
    closure: dict[int, Any] = {id(tensor): tensor for tensor in chosen}
    ours = {id(tensors), id(chosen), id(closure)}
    named: dict[int, tuple[str, str | None]] = {}
    frontier = chosen
    complete = False
    for _ in range(DEEPEST):
        if time.thread_time() > deadline or len(closure) > MOST_OBJECTS:
            break
        ours.add(id(frontier))
        above = gc.get_referrers(*frontier)
        ours.add(id(above))
        fresh: list[Any] = []
        ours.add(id(fresh))
        for thing in above:
            if id(thing) in ours or id(thing) in closure or _is_ours(thing):
                continue
            name = _end_of_search(thing)
            if name is not None:
                for child in frontier:
                    named.setdefault(id(child), name) if _refers(thing, child) else None
                continue
            closure[id(thing)] = thing
            fresh.append(thing)
        child = thing = None
        del above
        frontier = fresh
        if not fresh:
            complete = True
            break
    del frontier, fresh
    parents = _parents(closure)
    outside = {key for key in closure if key in named}
    if complete:
        outside |= _held_from_outside(closure, parents)
    alive = _reached(outside, closure) if complete else set(closure)
    answers: dict[tuple[str, ...], Answer] = {}
    for tensor in chosen:
        cyclic = complete and id(tensor) not in alive
        if not cyclic and not complete and id(tensor) not in named:
            holder = _unknown(tensor)
        else:
            holder = _holder(tensor, closure, parents, named, codes, cyclic=cyclic)
        answers.setdefault(holder.key, Answer(holder, [], cyclic)).tensors.append(tensor)
    tensor = None
    closure.clear()
    return list(answers.values()), complete and len(chosen) == len(tensors)


def _is_ours(thing: Any) -> bool:
    """Frames and variables of this package that are at work right now."""
    kind = type(thing)
    if kind is types.FrameType:
        return roots.is_own(thing.f_code.co_filename)
    return kind.__module__.startswith("vramscope.")


def _end_of_search(thing: Any) -> tuple[str, str | None] | None:
    """(words, file) of a thing that is a name by itself: a module's or class's dict, a running frame."""
    kind = type(thing)
    if kind is dict and "__name__" in thing and "__builtins__" in thing:
        return f"global of {thing['__name__']}", thing.get("__file__")
    if kind is dict and "__module__" in thing and "__qualname__" in thing:
        return f"class {thing['__module__']}.{thing['__qualname__']}", None
    if isinstance(thing, type):
        return f"class {thing.__module__}.{thing.__qualname__}", None
    if kind is types.ModuleType:
        return f"module {thing.__name__}", getattr(thing, "__file__", None)
    return None


def _refers(parent: Any, child: Any) -> bool:
    return any(thing is child for thing in gc.get_referents(parent))


def _parents(closure: dict[int, Any]) -> dict[int, list[int]]:
    parents: dict[int, list[int]] = {key: [] for key in closure}
    for key, thing in closure.items():
        for child in gc.get_referents(thing):
            if id(child) in parents:
                parents[id(child)].append(key)
    return parents


def _held_from_outside(closure: dict[int, Any], parents: dict[int, list[int]]) -> set[int]:
    """Objects with more references than the closure explains."""
    import torch

    outside = set()
    for key in closure:
        thing = closure[key]
        # ours: the closure's, the variable's, the call's; a tensor's C++ side has one more where it is shared
        references = sys.getrefcount(thing) - 3 - len(parents[key])
        if issubclass(type(thing), torch.Tensor):
            references -= 2  # the caller's two lists
            references -= 1 if thing._use_count() > 1 else 0
        if references > 0:
            outside.add(key)
    return outside


def _reached(start: set[int], closure: dict[int, Any]) -> set[int]:
    reached, stack = set(start), list(start)
    while stack:
        for child in gc.get_referents(closure[stack.pop()]):
            if id(child) in closure and id(child) not in reached:
                reached.add(id(child))
                stack.append(id(child))
    return reached


def _holder(
    tensor: Any,
    closure: dict[int, Any],
    parents: dict[int, list[int]],
    named: dict[int, tuple[str, str | None]],
    codes: Codes,
    *,
    cyclic: bool,
) -> Holder:
    """The nearest thing above the tensor that a person would recognise: an object of the user's, a frame, a function, a name."""
    level, seen, chain = [id(tensor)], {id(tensor)}, [type(tensor).__name__]
    for _ in range(DEEPEST):
        above = []
        for key in level:
            if key in named:
                words, file = named[key]
                return _make(("named", words), words, words, chain, file, None, None)
            for parent in parents[key]:
                if parent in seen:
                    continue
                seen.add(parent)
                above.append(parent)
                holder = _telling(closure[parent], closure[key], chain, codes, cyclic=cyclic)
                if holder is not None:
                    return holder
        if not above:
            break
        chain.append(type(closure[above[0]]).__name__)
        level = above
    return _unknown(tensor)


def _telling(thing: Any, child: Any, chain: list[str], codes: Codes, *, cyclic: bool) -> Holder | None:
    kind = type(thing)
    if kind is types.FrameType:
        code = thing.f_code
        name = next((name for name, value in roots.locals_of(thing).items() if isinstance(value, BaseException)), "")
        line = lines.name_kept_at(code, name, container=False) if name else None
        words = f"frame of {code.co_name}()" + (f", kept by its exception '{name}'" if name else "")
        return _make(
            ("frame", code.co_filename, code.co_qualname if hasattr(code, "co_qualname") else code.co_name),
            name or code.co_name,
            words,
            [words, *chain[::-1]],
            code.co_filename,
            line or code.co_firstlineno,
            code.co_name,
        )
    if kind is types.FunctionType:
        code = thing.__code__
        words = f"function {thing.__qualname__} and its closure"
        return _make(
            ("function", thing.__qualname__),
            thing.__name__,
            words,
            [words, *chain[::-1]],
            code.co_filename,
            code.co_firstlineno,
            code.co_name,
        )
    if (
        kind.__module__ in ("builtins", "types", "collections", "_thread")
        or kind.__module__.partition(".")[0] == "torch"
    ):
        return None
    label = next((label for label, value in children(thing) if value is child), "")
    if not label:
        attributes = child if type(child) is dict else {}
        label = next((f".{name}" for name in attributes if type(name) is str), "")
    own = [code for code in lines.codes_of_class(kind) if not roots.is_library(code.co_filename)]
    at = lines.attribute_kept_at(own, label.lstrip("."), container=False) if label.startswith(".") else None
    words = f"{'objects' if cyclic else 'an object'} of {kind.__qualname__}{label}"
    return _make(
        ("object", kind.__module__, kind.__qualname__, label),
        f"{kind.__name__}{label}",
        words,
        [words, *chain[::-1]],
        at[0].co_filename if at else None,
        at[1] if at else None,
        at[0].co_name if at else None,
    )


def _unknown(tensor: Any) -> Holder:
    words = f"holder not found: {type(tensor).__name__} of shape {list(tensor.shape)}"
    return _make(("unknown", str(list(tensor.shape))), "unknown", words, [], None, None, None)


def _make(
    key: tuple[str, ...],
    name: str,
    words: str,
    chain: list[str],
    file: str | None,
    line: int | None,
    function: str | None,
) -> Holder:
    return Holder(
        key=key,
        name=name[:200],
        words=words,
        chain=tuple(chain[:16]),
        file=file,
        line=line,
        function=function,
        container=True,
        bounded=False,
        size=None,
        carried=False,
        variable=False,
    )
