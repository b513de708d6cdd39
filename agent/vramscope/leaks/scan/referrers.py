"""Holders of tensors that no variable leads to: the garbage collector lists what refers to them, level by level.

The search ends at a name (a library's global, a class, a function), at an object that C code refers to, or nowhere. Then the
objects refer only to each other: a reference cycle that waits for the garbage collector. Counting references shows that, as
the collector itself does, so nothing is collected and the user's ``gc`` settings do not matter.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
import types
from collections import Counter
from typing import Any, Final

from vramscope.leaks.holders import wording
from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.holders.user_code import Codes
from vramscope.leaks.scan import reachability, time_budget
from vramscope.leaks.scan.object_children import MOST_OF_A_CONTAINER, length
from vramscope.leaks.scan.tensor_sampling import Weight, Weights, sample
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.process import frames, live_objects, type_info
from vramscope.process.reference_counts import OF_VARIABLE

MOST_TENSORS: Final = 48
"""Tensors that are traced; others of the same sizes count as alike."""
MOST_TARGETS: Final = 12
"""Tensors that are traced through all objects of the process: each one makes the pass longer."""
MOST_OBJECTS: Final = 4_000
MOST_YOUNG: Final = 100_000
OF_CALL: Final = OF_VARIABLE + 1
"""References to a tuple from our variable and our list alone: from Python 3.13 on ``get_referrers`` finds its own
arguments, which would lead from one such call to the next."""
LISTS: Final = 4
"""References to a traced tensor that are ours while its old ancestors are searched: three lists and the closure."""
DEEPEST: Final = 8
DEEPEST_OF_CYCLE: Final = 16
"""Levels of a cycle. A parameter is nine references below the model: each module has two dicts."""


@dataclasses.dataclass
class TracedHolder:
    """Holder of some tensors. Clear ``tensors`` after reading it."""

    holder: Holder
    tensors: list[Any]
    cyclic: bool
    stand_for: float = 0.0
    """Number of traced tensors, and of the others of their sizes."""
    elements: float = 0.0
    """Number of their elements."""

    @property
    def factors(self) -> tuple[float, float]:
        """Factors on the number of traced tensors, and on their bytes."""
        elements = sum(tensor.numel() for tensor in self.tensors)
        return self.stand_for / len(self.tensors), self.elements / elements if elements else 1.0

    def add(self, tensor: Any, weights: Weights) -> None:
        weight = weights[id(tensor)]
        self.tensors.append(tensor)
        self.stand_for += weight.tensors
        self.elements += weight.elements * tensor.numel()


def trace(tensors: list[Any], codes: Codes, time: TimeBudget) -> tuple[list[TracedHolder], bool]:
    """Holders of the tensors (some of each size are traced), and whether the search was complete.

    First among the young objects, which is cheap: most garbage is young, and the count of references proves that nothing
    old refers to it. For what is left, one pass over all objects of the process a level, some 30 ms each at 300,000 objects,
    as many as end in time. There, too, the count of references tells a cycle: a garbage collection of the old generation is
    rare, and a cycle that grew old waits long.
    """
    chosen, weights = sample(tensors, dict.fromkeys(map(id, tensors), Weight()), MOST_TENSORS)
    complete = len(chosen) == len(tensors)
    lists = 3  # references to a tensor that are ours: the two lists and the closure
    closure, whole = _young_ancestors(chosen, {id(tensors), id(chosen)}, time)
    complete = complete and whole
    parents = reachability.parents(closure)
    outside = reachability.held_from_outside(closure, parents, {id(tensor) for tensor in chosen}, lists)
    alive = reachability.reached(outside, closure)
    answers: dict[HolderKey, TracedHolder] = {}
    rest = []
    for tensor in chosen:
        if id(tensor) in alive:
            rest.append(tensor)
            continue
        if not parents[id(tensor)]:
            continue  # another thread has freed it since it was listed
        holder = _holders(tensor, closure, parents, {}, codes, cyclic=True)[0]
        answer = answers.setdefault(holder.key, TracedHolder(holder, [], True))
        answer.add(tensor, weights)
        if holder.carried and not answer.holder.carried:
            answer.holder = holder  # says more: the attribute that refers back, where the other is a list of children
    closure.clear()
    tensor = None  # the variable counts as a reference
    if rest:
        left = len(rest)
        rest, weights = sample(rest, weights, MOST_TARGETS)
        complete = complete and len(rest) == left
        closure, named, whole = _old_ancestors(rest, time, {id(tensors), id(chosen), id(rest)}, LISTS)
        complete = complete and whole
        parents = reachability.parents(closure)
        outside = reachability.held_from_outside(closure, parents, {id(tensor) for tensor in rest}, LISTS)
        alive = reachability.reached(outside, closure)
        for tensor in rest:
            cyclic = id(tensor) not in alive and bool(parents[id(tensor)])
            holder = _holders(tensor, closure, parents, named, codes, cyclic=cyclic)[0]
            answers.setdefault(holder.key, TracedHolder(holder, [], cyclic)).add(tensor, weights)
        closure.clear()
    return list(answers.values()), complete


def _young_ancestors(tensors: list[Any], ours: set[int], time: TimeBudget) -> tuple[dict[int, Any], bool]:
    """The tensors and what refers to them, directly or not, among objects that no full collection has seen yet.

    And whether all of these were searched: of a great many the newest, as far as the time allows.
    """
    if not time.allows(time.costs.of(time_budget.YOUNG, gc.get_count()[0])):
        return {id(tensor): tensor for tensor in tensors}, False  # of a user who has switched the collector off
    young, tuples, complete = live_objects.young(MOST_YOUNG)
    things: list[Any] = []
    above: dict[int, list[int]] = {}
    closure = {id(tensor): tensor for tensor in tensors}
    ours |= {id(young), id(things), id(above), id(closure)}
    try:
        for place, thing in enumerate(reversed(young), 1):
            if not place % 512 and time.over():
                complete = False
                break
            at_hand = [thing]
            while at_hand:
                for child in gc.get_referents(at_hand[-1]):
                    above.setdefault(id(child), []).append(len(things))
                    if type(child) is tuple and id(child) in tuples:
                        tuples.discard(id(child))
                        at_hand.insert(0, child)
                things.append(at_hand.pop())
        stack = list(closure)
        while stack and len(closure) < MOST_OBJECTS:
            for position in above.get(stack.pop(), ()):
                thing = things[position]
                if id(thing) not in closure and id(thing) not in ours and not _is_ours(thing):
                    closure[id(thing)] = thing
                    stack.append(id(thing))
    finally:
        young.clear()
    return closure, complete


def in_cycles(owners: list[Any], codes: Codes, time: TimeBudget) -> list[tuple[Holder, list[Any]]]:
    """Optimizers and modules of these that only a reference cycle keeps, by the holder that closes the cycle.

    The search begins with what they refer to. From a tensor alone it would be longer: a state is six references below the
    object that keeps its optimizer.
    """
    closure, named, _ = _old_ancestors(owners, time, {id(owners)}, 2, with_contents=True)
    parents = reachability.parents(closure)
    outside = reachability.held_from_outside(closure, parents, set(map(id, owners)), 2)  # 2: this list and the closure
    alive = reachability.reached(outside, closure)
    dead = [owner for owner in owners if id(owner) not in alive and parents[id(owner)]]
    holders = [_holders(owner, closure, parents, named, codes, cyclic=True) for owner in dead]
    common = Counter(holder.key for several in holders for holder in several)
    found: dict[HolderKey, tuple[Holder, list[Any]]] = {}
    for owner, several in zip(dead, holders, strict=True):  # one name for one cycle: the object that has most of them
        holder = max(several, key=lambda holder: (common[holder.key], holder.key.name))
        found.setdefault(holder.key, (holder, []))[1].append(owner)
    dead.clear()
    closure.clear()
    return list(found.values())


def _old_ancestors(
    targets: list[Any], time: TimeBudget, ours: set[int], lists: int = LISTS, *, with_contents: bool = False
) -> tuple[dict[int, Any], dict[int, tuple[str, str | None]], bool]:
    """Objects that refer to the targets, directly or not, among all objects; which of them are names; and whether these are all.

    What these objects refer to is included, as a cycle leads back through it.

    lists          references to a target that are ours
    with_contents  what the targets refer to is included, too
    """
    closure: dict[int, Any] = {id(thing): thing for thing in targets}
    ours.add(id(closure))
    named: dict[int, tuple[str, str | None]] = {}
    costs = time.costs
    objects = costs.objects
    searched: set[int] = set()
    if with_contents:
        _add_contents(targets, closure, ours)
    for _ in range(DEEPEST):
        frontier = _unexplained(targets, closure, searched, lists)
        if not frontier:
            break
        if not time.allows(costs.of(time_budget.REFERRERS, objects, len(frontier))) or len(closure) > MOST_OBJECTS:
            return closure, named, False
        searched.update(map(id, frontier))
        ours.add(id(frontier))
        began = time.taken
        # A tuple that another thread is making is among these only if one of the frontier is in it already; see
        # heap.py.
        above = gc.get_referrers(*frontier)
        costs.measured(time_budget.REFERRERS, objects, time.taken - began, len(frontier))
        ours.add(id(above))
        fresh: list[Any] = []
        ours.add(id(fresh))
        for thing in above:
            if id(thing) in ours or id(thing) in closure or _is_ours(thing):
                continue
            if type(thing) is tuple and sys.getrefcount(thing) <= OF_CALL:
                continue
            name = wording.named_by_itself(thing)
            if name is not None:
                for child in frontier:  # a comprehension would keep a reference to ``thing`` in a cell
                    if id(child) not in named and _refers(thing, child):
                        named[id(child)] = name
                continue
            closure[id(thing)] = thing
            fresh.append(thing)
        _add_contents(fresh, closure, ours)
        thing = child = None  # they would count as references, as these lists would
        for ended in (above, fresh, frontier):
            ended.clear()
    return closure, named, True


def _unexplained(targets: list[Any], closure: dict[int, Any], searched: set[int], lists: int) -> list[Any]:
    """The targets and what refers to them, if it was not searched yet and has references that the closure does not explain."""
    parents = reachability.parents(closure)
    keys = set(map(id, targets))
    outside = reachability.held_from_outside(closure, parents, keys, lists)
    upwards = reachability.ancestors(keys, parents) - searched
    return [closure[key] for key in upwards if key in outside or not parents[key]]


def _add_contents(things: list[Any], closure: dict[int, Any], ours: set[int]) -> None:
    """Add what these objects refer to, but for tensors, names and the contents of long containers."""
    import torch

    waiting = list(things)
    ours.add(id(waiting))
    while waiting and len(closure) < MOST_OBJECTS:
        thing = waiting.pop()
        if type(thing) is types.FrameType or (length(thing) or 0) > MOST_OF_A_CONTAINER:
            continue
        for child in gc.get_referents(thing):
            if (
                id(child) not in closure
                and id(child) not in ours
                and gc.is_tracked(child)
                and not issubclass(type(child), torch.Tensor)
                and wording.named_by_itself(child) is None
                and not _is_ours(child)
            ):
                closure[id(child)] = child
                waiting.append(child)


def _is_ours(thing: Any) -> bool:
    """True for running frames and objects of this package."""
    kind = type(thing)
    if kind is types.FrameType:
        return frames.is_own(thing.f_code.co_filename)
    return type_info.module_of(kind).startswith("vramscope.")


def _refers(parent: Any, child: Any) -> bool:
    return any(thing is child for thing in gc.get_referents(parent))


def _holders(
    tensor: Any,
    closure: dict[int, Any],
    parents: dict[int, list[int]],
    named: dict[int, tuple[str, str | None]],
    codes: Codes,
    *,
    cyclic: bool,
) -> list[Holder]:
    """The nearest referrers that a user recognises: an object of the user's class, a frame, a function, a name.

    Of a cycle first its members, and only then what they refer to.
    """
    for on_cycle in (True, False) if cyclic else (False,):
        level, child_of = [id(tensor)], {id(tensor): 0}
        for _ in range(DEEPEST_OF_CYCLE if cyclic else DEEPEST):
            above = []
            found = []
            for key in level:
                if key in named:
                    words, file = named[key]
                    chain = _types_below(key, child_of, closure)
                    holder_key = HolderKey(HolderKind.NAMED, name=words)
                    found.append(wording.nameless_holder(holder_key, words, words, [words, *chain], file, None, None))
                    continue
                for parent in parents[key]:
                    if parent in child_of:
                        continue
                    child_of[parent] = key
                    above.append(parent)
                    chain = _types_below(parent, child_of, closure)
                    holder = wording.holder_of_thing(
                        closure[parent], closure[key], tensor, chain, codes, closure, cyclic=on_cycle
                    )
                    if holder is not None:
                        found.append(holder)
            if found:
                return found
            if not above:
                break
            level = above
    chain = _types_below(level[0], child_of, closure)
    if cyclic:
        return [wording.unknown(tensor)]
    top = closure[level[0]]
    return [wording.being_built(top, chain) or wording.at_exit(top, chain, codes) or wording.unknown(tensor)]


def _types_below(key: int, child_of: dict[int, int], closure: dict[int, Any]) -> list[str]:
    """Type names of the objects from below this one down to the tensor, whose own child is 0."""
    path = []
    while key:
        path.append(closure[key])
        key = child_of[key]
    return wording.types_below(path)
