"""One look at what is held: which names keep which tensors and graphs, and how many bytes. A pure reading.

Sweep (every tensor), paths (from local and global names), walks (through the graphs), and, for what no name reaches,
referrers. It runs on the training thread at a boundary between steps, where tensors stand still; nothing of the user's runs,
and nothing of theirs is kept when it returns.

Bounded in time, calls that nothing can interrupt included (see allowance.py); what the bound left out is said. But in an ordinary
process each part does its least, a few ms, whatever the parts before it took: a machine that is slow, or busy, judges an ordinary
training as any other does.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from vramscope.leaks.autograd.graph_walk import Budget, Chains
from vramscope.leaks.holders import wording
from vramscope.leaks.holders.grouping import Family, Keys, family_of, group_key
from vramscope.leaks.holders.holder import Holder, holder_of
from vramscope.leaks.holders.holder_bytes import Group, group_of, joined, spread
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.holders.user_code import Codes
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan import referrers, storages, time_budget
from vramscope.leaks.scan.container_sampling import Contents
from vramscope.leaks.scan.paths import Path, find, leads_through_us
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.scan.tensors import Seen, held_by_python, in_use, parameters_of, sweep, with_gradients
from vramscope.leaks.scan.time_budget import Allowance
from vramscope.process import name_roots
from vramscope.process.gc_pause import collector_paused

MOST_NEWEST: Final = 64
"""tensors that one step leaves in a variable, and that a list has too"""
LEAST_HOLDERS: Final = 64
"""that are put into words in an ordinary process; some 50 µs each"""
AT_ONCE: Final = 256
"""tensors between two looks at the clock"""
LEAST_TENSORS: Final = 4_096
"""that are asked for, and told apart by holder, in an ordinary process"""
FEW: Final = 8
"""tensors of a holder"""
MOST_PATHS: Final = 1_024
"""of the newest tensors of one holder, by which it is put into words"""
SECONDS_A_TENSOR: Final = 5e-6
"""to count what it holds, but for its graph"""


@dataclasses.dataclass
class Sight:
    """All groups of one look."""

    groups: list[Group]
    nameless: list[weakref.ref[Any]]
    """tensors that no variable leads to: :func:`trace` finds who holds them"""
    models: dict[int, weakref.ref[Any]]
    """of these, parameters that stand for a whole model: id -> its outermost module"""
    known: Storages
    tensors: int
    live_bytes: int
    optimizers: int
    left_out: list[str]
    is_whole: bool
    """all that variables lead to was looked at: to what is nameless none does"""


class Traced(NamedTuple):
    """Who holds what no variable leads to."""

    groups: list[Group]
    complete: bool
    """all was looked at"""
    keys: dict[int, HolderKey]
    """id of a tensor that was traced -> of its holder"""


def explain(
    kinds: TensorKinds,
    time: Allowance,
    ignored: Callable[[Any], bool] = lambda tensor: False,
    chains: Chains | None = None,
    steps_no_more: Callable[[Any], bool] = lambda optimizer: False,
    differentiable: tuple[str, int, str] | None = None,
) -> Sight:
    """Look once, for so much of this thread's time, but for what :func:`trace` needs.

    ignored         tensors that an earlier look has found nothing about
    chains          how far they have walked through graphs of many steps
    steps_no_more   of an optimizer: it did, and others have since
    differentiable  file, line and function of the last backward(create_graph=True)
    """
    seen = sweep(kinds, time, steps_no_more)
    left_out = [seen.left_out] if seen.left_out else []
    wanted = _held(seen, ignored, time, left_out)
    models = {id(tensor): weakref.ref(module) for tensor, module in seen.models if not ignored(tensor)}
    wanted |= models.keys()
    wanted |= {id(optimizer) for optimizer in seen.retired}
    groups: list[Group] = []
    nameless: list[weakref.ref[Any]] = []
    complete = True
    if wanted:
        given = name_roots.in_flight()
        until = time_budget.PATHS - (time_budget.FOR_THE_LAST if time.is_ordinary else 0.0)
        found, between, long, again, complete = find(name_roots.roots(), wanted, time, until, seen.tensor_types)
        if not complete and len(found) + len(between) < len(wanted):
            left_out.append("some of what your variables hold: too many objects")
        if seen.retired:
            alive = [one for one in seen.retired if not complete or id(one) in found or id(one) in between]
            if (
                len(alive) < POLICY.untrained_models
            ):  # more are of trainings that are over: folds, or one for each learning rate
                seen = in_use(seen, alive)
            alive.clear()
            models = {id(tensor): models[id(tensor)] for tensor, _ in seen.models if id(tensor) in models}
            optimizers = {id(optimizer) for optimizer in seen.retired}
            found = {key: path for key, path in found.items() if key not in optimizers}
        codes, family = Codes(), family_of(found.values())
        keys = Keys(family)
        named: dict[HolderKey, tuple[list[Any], list[Path]]] = {}
        ours: dict[int, bool] = {}
        for position, tensor in enumerate(seen.kept):
            if not position % AT_ONCE and time.over(time_budget.GROUPS, position, LEAST_TENSORS):
                left_out.append(f"who holds the older {len(seen.kept) - position:,} of {len(seen.kept):,} tensors")
                break
            path = found.get(id(tensor))
            if path is not None and leads_through_us(path, ours):
                continue  # the agent's own, by its hooks on a module that a variable leads to
            if path is not None:
                tensors, paths = named.setdefault(keys.of(path), ([], []))
                tensors.append(tensor)
                paths.append(path)
            elif id(tensor) in wanted and id(tensor) not in between and id(tensor) not in given:
                nameless.append(weakref.ref(tensor))
        models_of: dict[HolderKey, tuple[list[Any], list[Path]]] = {}
        for tensor, module in seen.models:
            path = found.get(id(tensor))
            if path is not None:
                modules, paths = models_of.setdefault(group_key(path, family), ([], []))
                modules.append(module)
                paths.append(path)
        # A model that a name leads to is in use; of one that none leads to, a parameter stands for all.
        nameless += [
            weakref.ref(tensor)
            for tensor, _ in seen.models
            if id(tensor) in wanted and id(tensor) not in found and id(tensor) not in between
        ]
        pairs: list[tuple[Holder, list[Any], float]] = []
        paths_of: dict[HolderKey, list[Path]] = {}
        inside = _inside(long, between, family)
        many = sorted(named.values(), key=lambda entry: -len(entry[0]))
        for tensors, paths in many:
            if time.over(time_budget.HOLDERS, len(pairs), LEAST_HOLDERS):
                left_out.append(f"some of {len(many):,} variables, those with the fewest tensors")
                break
            if _matters(tensors):
                if len(tensors) <= FEW:  # the largest gives the name, where objects of one class have one each
                    order = sorted(range(len(tensors)), key=lambda at: -tensors[at].numel())
                    tensors, paths = ([those[at] for at in order] for those in (tensors, paths))
                holder = holder_of(paths[:MOST_PATHS], codes, family, written=_is_written(tensors[0]))
                pairs.append((holder, tensors, _tensors_each(holder, paths, inside, bool(seen.left_out), left_out)))
                paths_of[holder.key] = paths
        # Containers first: the budget is for those that hold many. Then what is carried from step to step: of what is made anew of
        # it, in each, the graph is as long only because that one's is.
        pairs.sort(key=lambda pair: (not pair[0].container, not pair[0].carried, -len(pair[1])))
        budget = Budget(chains)
        for holder, tensors, factor in pairs:
            weighed = spread(tensors, max(MOST_PATHS, int(time.left(time_budget.HOLDERS) / SECONDS_A_TENSOR)))
            group = group_of(holder, weighed, seen.known, budget)
            group.scale(factor * len(tensors) / len(weighed))
            group.also_in = _also_in(paths_of[holder.key], again, family)
            groups.append(group)
        groups += [
            _of_models(holder_of(paths, codes, family), modules, seen.known, budget)
            for modules, paths in models_of.values()
            if len(modules) >= POLICY.untrained_models
        ]
        groups = joined(groups)
        if budget.left <= 0:
            left_out.append("parts of long graphs: their bytes are estimated from the rest")
        if budget.chained_left <= 0:
            left_out.append(
                "the older parts of graphs of many steps: what they hold is estimated from the newer ones, or more"
            )
    orphans = [parameter for parameter in seen.orphans if not held_by_python(parameter, 2)]
    if orphans and differentiable is not None:
        groups.append(_of_orphans(orphans, seen.known, differentiable, chains))
    return Sight(
        groups, nameless, models, seen.known, seen.tensors, seen.live_bytes, seen.optimizers, left_out, complete
    )


def _held(seen: Seen, ignored: Callable[[Any], bool], time: Allowance, left_out: list[str]) -> set[int]:
    """Ids of the tensors that Python holds, the newest first, as far as the time goes."""
    held: set[int] = set()
    for position, tensor in enumerate(seen.kept):
        if not position % AT_ONCE and time.over(time_budget.WANTED, position, LEAST_TENSORS):
            left_out.append(
                f"the older {len(seen.kept) - position:,} of {len(seen.kept):,} tensors that somebody may keep"
            )
            break
        if held_by_python(tensor, 2) and not ignored(tensor):  # references: the list, the variable
            held.add(id(tensor))
    return held


class _Inside(NamedTuple):
    """Long containers of one holder."""

    paths: frozenset[int]
    """ids of these"""
    wanted: int
    """tensors between their ends that somebody keeps, as far as they were looked through"""
    contents: list[Contents]


def _inside(long: list[tuple[Path, Contents]], between: dict[int, Path], family: Family) -> dict[HolderKey, _Inside]:
    """By the holder's key."""
    counts = collections.Counter(map(id, between.values()))
    found: dict[HolderKey, _Inside] = {}
    for path, contents in long:
        element = path._replace(parent=path, label="[*]", depth=path.depth + 1)
        key = group_key(element, family)
        before = found.get(key, _Inside(frozenset(), 0, []))
        found[key] = _Inside(before.paths | {id(path)}, before.wanted + counts[id(path)], [*before.contents, contents])
    return found


def _tensors_each(
    holder: Holder, paths: list[Path], inside: dict[HolderKey, _Inside], cut_short: bool, left_out: list[str]
) -> float:
    """Tensors there are for each of which a path was found: the others lie between the ends of long containers, or (where the look
    is ``cut_short``) were too old to be looked at."""
    long = inside.get(holder.key)
    if long is None:
        return 1.0
    if not cut_short and all(one.is_whole for one in long.contents):
        return 1 + long.wanted / len(paths)
    if not all(one.is_whole for one in long.contents):
        through, elements = (
            sum(getattr(one, name) for one in long.contents) for name in ("looked_through", "elements")
        )
        left_out.append(
            f"all but {through:,} of {elements:,} elements of '{holder.name}': a sample tells what they have"
        )
    parents = {id(path.parent): path.parent for path in paths}
    elsewhere = {
        key for key, parent in parents.items() if parent is None or long.paths.isdisjoint(map(id, parent.links()))
    }
    beside = sum(id(path.parent) in elsewhere for path in paths)
    return max(1.0, (beside + sum(one.tensors for one in long.contents)) / len(paths))


def _also_in(paths: list[Path], again: dict[int, Path], family: Family) -> frozenset[HolderKey]:
    """Keys of the containers without a bound that have all of it too: of the list whose newest element a variable has."""
    if not again or len(paths) > MOST_NEWEST:
        return frozenset()
    others = [{group_key(again[id(link)], family) for link in path.links() if id(link) in again} for path in paths]
    return frozenset(set.intersection(*others) - {group_key(paths[0], family)})


def _of_orphans(orphans: list[Any], known: Storages, place: tuple[str, int, str], chains: Chains | None) -> Group:
    """No collector sees this cycle: it goes through autograd's nodes, in C++."""
    file, line, function = place
    words = "param.grad -> its graph -> param, in C++: of backward(create_graph=True)"
    holder = wording.made_of(
        HolderKey(HolderKind.CREATE_GRAPH, function, file), "param.grad", words, [words], file, line, function
    )
    group = group_of(holder, with_gradients(orphans), known, Budget(chains))
    group.cyclic = True
    return group


def _of_models(holder: Holder, modules: list[Any], known: Storages, budget: Budget) -> Group:
    """Whole models as tensors that are kept: their parameters and gradients count as any other tensor does."""
    held = [one for module in modules for one in with_gradients(parameters_of(module))]
    group = group_of(holder, held, _without(known, held), budget)
    group.models = len(modules)
    return group


def _without(known: Storages, tensors: list[Any]) -> Storages:
    own: Storages = {}
    for tensor in tensors:
        storages.add(own, tensor)
    return {storage: size for storage, size in known.items() if storage not in own}


def _alive(references: list[weakref.ref[Any]]) -> list[Any]:
    """In a function of its own: who is held is found by counting references, and a variable more would spoil it."""
    return [tensor for reference in references if (tensor := reference()) is not None]


def _is_written(tensor: Any) -> bool:
    """Whether its newest operation has written something into a part of it: ``memory[2:5] = x``, ``memory[index] = x``."""
    name = type(tensor.grad_fn).__name__
    return name.startswith(("CopySlices", "IndexPutBackward")) and bool(tensor._version)


def _matters(tensors: list[Any]) -> bool:
    """Graphs always; plain tensors from POLICY.plain_bytes on (a look at a model's statistics would take its time)."""
    total = 0
    for tensor in tensors:
        if not tensor.is_leaf:
            return True
        found = storages.storage_of(tensor)
        total += found[1] if found else 0
        if total >= POLICY.plain_bytes:
            return True
    return False


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """For the time of a look: no garbage collection, and no ``__torch_function__`` of a tensor class of the user's.

    Asking a tensor for its storage would run the code of its class.
    """
    import torch

    with collector_paused(), torch._C.DisableTorchFunctionSubclass():
        yield


def trace(
    sight: Sight,
    time: Allowance,
    chains: Chains | None = None,
    earlier: Callable[[HolderKey], list[Any]] = lambda key: [],
) -> Traced:
    """Who holds tensors that no variable leads to: reference cycles, libraries, C.

    earlier   tensors that looks before this one have found with the same holder, and left out of this one: they count with it

    Within one :func:`undisturbed` with the look that found them.
    """
    tensors = _alive(sight.nameless)
    keys: dict[int, HolderKey] = {}
    if time.is_ordinary and tensors and time.left() < time.seconds * time_budget.FOR_THE_LAST:
        time = Allowance(time.seconds * time_budget.FOR_THE_LAST, time.costs)
    if not tensors or time.over():
        return Traced([], not tensors, keys)
    budget = Budget(chains)
    answers, complete = referrers.trace(tensors, Codes(), time)
    groups = []
    for answer in answers:
        known = sight.known
        many, times = answer.factors
        modules = [sight.models[id(tensor)]() for tensor in answer.tensors if id(tensor) in sight.models]
        if modules:
            times = many  # (one parameter stood for each)
            answer.tensors = [tensor for tensor in answer.tensors if id(tensor) not in sight.models]
        if modules and answer.cyclic:
            # Nobody can use these models any more: their parameters and gradients are held as any other tensor is.
            held = [one for module in modules if module is not None for one in with_gradients(parameters_of(module))]
            known = _without(known, held)
            answer.tensors += held
        may_have_a_name = not answer.cyclic and answer.holder.key.kind is HolderKind.UNKNOWN and not sight.is_whole
        if not answer.tensors or may_have_a_name:
            continue  # (a variable may have it, to which the search did not come)
        keys |= dict.fromkeys(map(id, answer.tensors), answer.holder.key)
        traced, elements = len(answer.tensors), sum(one.numel() for one in answer.tensors)
        if not answer.cyclic:
            before = earlier(answer.holder.key)
            more, more_elements = len(before), sum(one.numel() for one in before)
            many = (many * traced + more) / (traced + more)
            times = (times * elements + more_elements) / max(1, elements + more_elements)
            answer.tensors += before
            before.clear()
        group = group_of(answer.holder, answer.tensors, known, budget)
        group.cyclic = answer.cyclic
        group.scale(many, times)
        groups.append(group)
        answer.tensors.clear()
    return Traced(groups, complete, keys)
