"""One look at what is held: which names keep which tensors and graphs, and how many bytes. A pure reading.

Sweep (every tensor), paths (from local and global names), walks (through the graphs), and, for what no name reaches,
referrers. It runs on the training thread at a boundary between steps, where tensors stand still; nothing of the user's runs,
and nothing of theirs is kept when it returns.

Bounded in time, calls that nothing can interrupt included (see allowance.py); what the bound left out is said. But each part
does its least, a few ms, whatever the parts before it took: a machine that is slow, or busy, judges an ordinary training as any
other does.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from vramscope.collector import collector_paused
from vramscope.graphs import referrers, roots, storages, wording
from vramscope.graphs.allowance import Allowance, Costs
from vramscope.graphs.children import MOST_OF_A_CONTAINER
from vramscope.graphs.codes import Codes
from vramscope.graphs.families import Family, family_of, group_key, held_links
from vramscope.graphs.group import Group, group_of, joined
from vramscope.graphs.holders import Holder, holder_of
from vramscope.graphs.paths import Path, find, leads_through_us
from vramscope.graphs.storages import Storages, TensorKinds
from vramscope.graphs.sweep import held_by_python, in_use, parameters_of, sweep, with_gradients
from vramscope.graphs.walk import Budget, Chains

HolderKey = tuple[str, ...]
"""what makes a holder the same from look to look"""
LEAST_PLAIN_BYTES: Final = 16 * 1024
PART_FOR_PATHS: Final = 0.9
"""of the time, up to the end of the search for paths"""
MANY_MODELS: Final = 3
"""that none trains, of one holder: copies, of which there may be more and more. One or two are teachers and targets"""
MOST_NEWEST: Final = 64
"""tensors that one step leaves in a variable, and that a list has too"""
LEAST_HOLDERS: Final = 64
"""that are put into words, whatever time is left; some 50 µs each"""


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
    seconds: float


class Traced(NamedTuple):
    """Who holds what no variable leads to."""

    groups: list[Group]
    complete: bool
    """all was looked at"""
    seconds: float
    keys: dict[int, HolderKey]
    """id of a tensor that was traced -> of its holder"""


def explain(
    kinds: TensorKinds,
    seconds: float,
    ignored: Callable[[Any], bool] = lambda tensor: False,
    costs: Costs | None = None,
    chains: Chains | None = None,
    steps_no_more: Callable[[Any], bool] = lambda optimizer: False,
    differentiable: tuple[str, int, str] | None = None,
) -> Sight:
    """Look once, for ``seconds`` of this thread's time.

    ignored         tensors that an earlier look has found nothing about
    costs           what earlier looks in this process have measured
    chains          how far they have walked through graphs of many steps
    steps_no_more   of an optimizer: it did, and others have since
    differentiable  file, line and function of the last backward(create_graph=True)
    """
    time = Allowance(seconds, costs)
    seen = sweep(kinds, time, steps_no_more)
    left_out = [seen.left_out] if seen.left_out else []
    # references: the list, the variable
    wanted = {id(tensor) for tensor in seen.kept if held_by_python(tensor, 2) and not ignored(tensor)}
    models = {id(tensor): weakref.ref(module) for tensor, module in seen.models if not ignored(tensor)}
    wanted |= models.keys()
    wanted |= {id(optimizer) for optimizer in seen.retired}
    groups: list[Group] = []
    nameless: list[weakref.ref[Any]] = []
    if wanted:
        given = roots.in_flight()
        found, between, counted, again, complete = find(roots.roots(), wanted, time, PART_FOR_PATHS)
        if not complete and len(found) + len(between) < len(wanted):
            left_out.append("some of what your variables hold: too many objects")
        if seen.retired:
            alive = [one for one in seen.retired if not complete or id(one) in found or id(one) in between]
            if len(alive) < MANY_MODELS:  # more are of trainings that are over: folds, or one for each learning rate
                seen = in_use(seen, alive)
            alive.clear()
            models = {id(tensor): models[id(tensor)] for tensor, _ in seen.models if id(tensor) in models}
            optimizers = {id(optimizer) for optimizer in seen.retired}
            found = {key: path for key, path in found.items() if key not in optimizers}
        codes, family = Codes(), family_of(found.values())
        named: dict[tuple[str, ...], tuple[list[Any], list[Path]]] = {}
        ours: dict[int, bool] = {}
        for tensor in seen.kept:
            path = found.get(id(tensor))
            if path is not None and leads_through_us(path, ours):
                continue  # the agent's own, by its hooks on a module that a variable leads to
            if path is not None:
                tensors, paths = named.setdefault(group_key(path, family), ([], []))
                tensors.append(tensor)
                paths.append(path)
            elif id(tensor) in wanted and id(tensor) not in between and id(tensor) not in given:
                nameless.append(weakref.ref(tensor))
        models_of: dict[tuple[str, ...], tuple[list[Any], list[Path]]] = {}
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
        middle = _keys_between(between.values(), family)
        many = sorted(named.values(), key=lambda entry: -len(entry[0]))
        for tensors, paths in many:
            if len(pairs) >= LEAST_HOLDERS and time.over():
                left_out.append(f"some of {len(many):,} variables, those with the fewest tensors")
                break
            if _matters(tensors):
                holder = holder_of(paths, codes, family)
                if not seen.left_out and id(held_links(paths[0], family)[-1]) in counted:
                    factor = 1 + middle[holder.key] / len(tensors)
                else:
                    factor = _elements_each(holder, paths, bool(seen.left_out))
                pairs.append((holder, tensors, factor))
                paths_of[holder.key] = paths
        # Containers first: the budget is for those that hold many. Then what is carried from step to step: of what is made anew of
        # it, in each, the graph is as long only because that one's is.
        pairs.sort(key=lambda pair: (not pair[0].container, not pair[0].carried, -len(pair[1])))
        budget = Budget(chains)
        for holder, tensors, factor in pairs:
            group = group_of(holder, tensors, seen.known, budget)
            group.scale(factor)
            group.also_in = _also_in(paths_of[holder.key], again, family)
            groups.append(group)
        groups += [
            _of_models(holder_of(paths, codes, family), modules, seen.known, budget)
            for modules, paths in models_of.values()
            if len(modules) >= MANY_MODELS
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
    taken = time.taken
    return Sight(groups, nameless, models, seen.known, seen.tensors, seen.live_bytes, seen.optimizers, left_out, taken)


def _keys_between(paths: Iterable[Path], family: Family) -> collections.Counter[tuple[str, ...]]:
    """How many tensors lie between the ends of long containers, by the key of what has these; given the containers' paths."""
    counts = collections.Counter(map(id, paths := list(paths)))
    keys: collections.Counter[tuple[str, ...]] = collections.Counter()
    for path in {id(path): path for path in paths}.values():
        element = path._replace(parent=path, label="[*]", depth=path.depth + 1)
        keys[group_key(element, family)] += counts[id(path)]
    return keys


def _also_in(paths: list[Path], again: dict[int, Path], family: Family) -> frozenset[HolderKey]:
    """Keys of the containers without a bound that have all of it too: of the list whose newest element a variable has."""
    if not again or len(paths) > MOST_NEWEST:
        return frozenset()
    others = [{group_key(again[id(link)], family) for link in path.links() if id(link) in again} for path in paths]
    return frozenset(set.intersection(*others) - {group_key(paths[0], family)})


def _elements_each(holder: Holder, paths: list[Path], cut_short: bool) -> float:
    """Of a container with more elements than are looked at: how many there are for each that was seen to hold something."""
    if holder.size is None or holder.size <= MOST_OF_A_CONTAINER:
        return 1.0
    if not cut_short:
        return holder.size / MOST_OF_A_CONTAINER
    # The older tensors were left out, and with them the container's first elements.
    depth = len(held_links(paths[0]))
    seen = {id(links[min(depth, len(links) - 1)]) for links in map(Path.links, paths)}
    return holder.size / min(len(seen), MOST_OF_A_CONTAINER)


def _of_orphans(orphans: list[Any], known: Storages, place: tuple[str, int, str], chains: Chains | None) -> Group:
    """No collector sees this cycle: it goes through autograd's nodes, in C++."""
    file, line, function = place
    words = "param.grad -> its graph -> param, in C++: of backward(create_graph=True)"
    holder = wording.made_of(("create_graph", file, function), "param.grad", words, [words], file, line, function)
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


def _matters(tensors: list[Any]) -> bool:
    """Graphs always; plain tensors from LEAST_PLAIN_BYTES on (a look at a model's statistics would take its time)."""
    total = 0
    for tensor in tensors:
        if not tensor.is_leaf:
            return True
        found = storages.storage_of(tensor)
        total += found[1] if found else 0
        if total >= LEAST_PLAIN_BYTES:
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
    seconds: float,
    costs: Costs | None = None,
    chains: Chains | None = None,
    earlier: Callable[[HolderKey], list[Any]] = lambda key: [],
) -> Traced:
    """Who holds tensors that no variable leads to: reference cycles, libraries, C.

    earlier   tensors that looks before this one have found with the same holder, and left out of this one: they count with it

    Within one :func:`undisturbed` with the look that found them.
    """
    time = Allowance(seconds, costs)
    tensors = _alive(sight.nameless)
    keys: dict[int, HolderKey] = {}
    if not tensors:
        return Traced([], True, 0.0, keys)
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
        if not answer.tensors:
            continue
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
    return Traced(groups, complete, time.taken, keys)
