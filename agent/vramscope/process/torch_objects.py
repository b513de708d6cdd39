"""Lists tensors, modules and optimizers, mostly without a pass over all objects of the process.

A pass takes 0.25 µs per object and stops the training: 80 ms where libraries are imported. After one, the objects that it found
are known by weak reference, and every later one is young until Python's collector runs over its middle generation. Before it
does, the young ones are added to the known ones. So the known and the young objects are all. Parameters and buffers are found
through their modules and have no weak reference of ours: ``Module.to()`` may swap tensors, which refuses those that have one.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from vramscope.guard import guarded
from vramscope.process import live_objects

MOST_KNOWN: Final = 20_000
"""Number of objects that are known by weak reference. Processes with more of them are passed over each time."""
MOST_YOUNG: Final = 50_000
"""Number of young objects from which a pass over all of them costs hardly more. A program that disables the collector has them."""
MOST_FOLLOWED: Final = 16
"""Number of collections after a pass before which young objects are listed, in 2 ms each. The next list takes a pass again."""
HAS_GENERATIONS: Final = sys.implementation.name == "cpython" and sys.version_info < (3, 14)
"""False where the collector moves objects to the old generation step by step."""


class Found(NamedTuple):
    """Objects of some types, the oldest first."""

    objects: list[Any]
    process_objects: int
    """Number of objects of any type in the process."""
    was_passed: bool
    """True if all objects of the process were passed over."""


class _Known(NamedTuple):
    """Objects that were found by a pass, or young before a later collection."""

    references: list[weakref.ref[Any] | int]
    """Optimizers, modules and tensors by weak reference; parameters and buffers of modules by id. The oldest first."""
    modules: list[weakref.ref[Any]]
    owned: frozenset[int]
    """Ids of their parameters and buffers."""
    collections: _Collections
    process_objects: int
    """Number of objects of any type at the pass."""
    followed: int = 0
    """Number of collections since the pass."""


class _Collections(NamedTuple):
    """Number of collections that made young objects old ones, and of frozen objects."""

    middle: int
    old: int
    frozen: int


def living(*kinds: type) -> list[Any]:
    """Return all tensors, modules or optimizers of these classes and their subclasses, the oldest first."""
    return of_types(set().union(*map(live_objects.with_subclasses, kinds))).objects


def of_types(types: Iterable[type]) -> Found:
    """Return all objects whose type is one of these: classes of tensors, modules or optimizers.

    Cost: about 1 µs per known object if the last pass can be used, else as for :func:`live_objects.of_types`.
    """
    return found_without_pass(types) or passed_over(types)


def found_without_pass(types: Iterable[type]) -> Found | None:
    """Return the same if no pass is needed, else None."""
    known = _known
    if known is None or not _is_current(known):
        return None
    young, _ = live_objects.of_types(types, live_objects.YOUNG)
    old = _resolved(known)
    if old is None or _known is not known or not _is_current(known):
        return None
    ids = set(map(id, old))
    wanted = frozenset(map(id, types)).__contains__
    old = [one for one in old if wanted(id(type(one)))]
    return Found(old + [one for one in young if id(one) not in ids], known.process_objects, False)


def passed_over(types: Iterable[type]) -> Found:
    """Return the same after a pass over all objects, which makes the next calls cheaper."""
    global _known
    forget()
    before = _collections()
    every, count = live_objects.of_types(_families().union(types))
    if HAS_GENERATIONS and len(every) <= MOST_KNOWN and before == _collections():
        _known = _with_references(_Known([], [], frozenset(), before, count), every)
        if _known is not None and _before_collection not in gc.callbacks:
            gc.callbacks.append(_before_collection)
    wanted = frozenset(map(id, types)).__contains__
    return Found([one for one in every if wanted(id(type(one)))], count, True)


def forget(*_: object) -> None:
    """Release all weak references."""
    global _known
    _known = None
    if _before_collection in gc.callbacks:
        gc.callbacks.remove(_before_collection)


_known: _Known | None = None


@guarded("the list of young objects")
def _before_collection(phase: str, info: dict[str, int]) -> None:
    """Add the objects that the collection makes old ones. It stays a callback of the collector until the next pass."""
    global _known
    known, generation = _known, info["generation"]
    if phase != "start" or generation == 0 or known is None:
        return
    _known = None
    old = _resolved(known) if known.followed < MOST_FOLLOWED and _is_current(known) else None
    if old is not None:
        ids = set(map(id, old))
        young, _ = live_objects.of_types(_families(), live_objects.YOUNG)
        collections = known.collections._replace(
            middle=known.collections.middle + (generation == 1), old=known.collections.old + (generation == 2)
        )
        known = known._replace(collections=collections, followed=known.followed + 1)
        _known = _with_references(known, [one for one in young if id(one) not in ids])


def _is_current(known: _Known) -> bool:
    return known.collections == _collections() and gc.get_count()[0] <= MOST_YOUNG


def _collections() -> _Collections:
    _, middle, old = gc.get_stats()
    return _Collections(middle["collections"], old["collections"], gc.get_freeze_count())


def _families() -> set[type]:
    import torch

    return set().union(*map(live_objects.with_subclasses, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)))


def _with_references(known: _Known, objects: list[Any]) -> _Known | None:
    """Add objects. Returns None where a parameter belongs to no module, as a module might get it later."""
    import torch

    modules = [one for one in objects if issubclass(type(one), torch.nn.Module)]
    owned = known.owned | {id(tensor) for module in modules for tensor in _tensors_of(module)}
    if any(issubclass(type(one), torch.nn.Parameter) and id(one) not in owned for one in objects):
        return None
    return known._replace(
        references=known.references + [id(one) if id(one) in owned else weakref.ref(one) for one in objects],
        modules=known.modules + list(map(weakref.ref, modules)),
        owned=owned,
    )


def _resolved(known: _Known) -> list[Any] | None:
    """Return the known objects that still live; None if a parameter has left its module, or died with it."""
    modules = [module for reference in known.modules if (module := reference()) is not None]
    owned = {id(tensor): tensor for module in modules for tensor in _tensors_of(module)}
    if not known.owned <= owned.keys():
        return None
    found = [owned[one] if type(one) is int else one() for one in known.references]  # type: ignore[operator]
    return [one for one in found if one is not None]


def _tensors_of(module: Any) -> list[Any]:
    """Return parameters and buffers of a module without its children, read from ``__dict__``: no code of the user runs."""
    inside = module.__dict__
    both = (*(inside.get("_parameters") or {}).values(), *(inside.get("_buffers") or {}).values())
    return [tensor for tensor in both if tensor is not None]
