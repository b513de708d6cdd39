"""One scan: which names retain which tensors and graphs, and how many bytes. It only reads.

Stages: sweep (every tensor), search (paths from local and global names), grouping (paths of one holder), counting (walks through
the graphs), and for what no name reaches, referrers. A scan runs on the training thread between steps, where tensors do not change.
No code of the user runs, and nothing of theirs is kept when it returns.

The time is bounded, including calls that cannot be interrupted (time_budget.py); what was left out is reported. In an ordinary
process each stage does a minimum of work whatever the stages before took, so that a slow machine judges as a fast one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from vramscope.leaks.autograd.graph_walk import Chains, NodeBudget
from vramscope.leaks.holders.grouping import Grouping, KeyCache, group_key, grouping_of
from vramscope.leaks.holders.holder import Holder, holder_of
from vramscope.leaks.holders.holder_bytes import HeldMemory, group_of, joined, spread
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.holders.user_code import Codes
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan import referrers, time_budget
from vramscope.leaks.scan.grouped_tensors import (
    TensorsInside,
    alive,
    also_in,
    group_of_models,
    group_of_orphans,
    hold_memory,
    is_written,
    tensors_each,
    tensors_inside,
    without,
)
from vramscope.leaks.scan.paths import FoundPaths, Path, find, leads_through_us
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.scan.tensors import (
    AT_ONCE,
    NOT_REACHED,
    LiveTensors,
    held_by_python,
    in_use,
    sweep,
    tensors_of,
    with_python_owner,
)
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.leaks.scan.unused_memory import UnusedMemory, groups_of_unused, without_optimizer
from vramscope.process import name_roots
from vramscope.process.gc_pause import collector_paused

LEAST_HOLDERS: Final = 64
"""Holders that are described in an ordinary process, at about 50 µs each."""
LEAST_TENSORS: Final = 4_096
"""Tensors that are searched for, and grouped by holder, in an ordinary process."""
FEW: Final = 8
"""Maximum number of tensors of a holder that is named after its largest one."""
MOST_PATHS: Final = 1_024
"""Paths to the newest tensors of one holder, by which it is described."""
SECONDS_A_TENSOR: Final = 5e-6
"""Time to count a tensor, without its graph."""


@dataclasses.dataclass
class FoundHolders:
    """Result of a scan, but for what no variable leads to."""

    groups: list[HeldMemory]
    nameless: list[weakref.ref[Any]]
    """Tensors that no variable leads to; :func:`trace` finds their holders."""
    models: dict[int, weakref.ref[Any]]
    """Outermost module of each of them that is a parameter and stands for a whole model, by id."""
    retired: list[weakref.ref[Any]]
    """Retired optimizers that no variable leads to."""
    known: Storages
    tensors: int
    live_bytes: int
    optimizers: int
    not_scanned: list[str]
    is_whole: bool
    """True where everything that variables lead to was searched."""


class Traced(NamedTuple):
    """Holders of tensors that no variable leads to."""

    groups: list[HeldMemory]
    complete: bool
    keys: dict[int, HolderKey]
    """Key of the holder of each traced tensor, by id."""


class _Named(NamedTuple):
    """Tensors, or modules, of one holder, and a path to each."""

    things: list[Any]
    paths: list[Path]


class _Ranked(NamedTuple):
    """A holder with its tensors, and how many tensors each of them stands for."""

    holder: Holder
    tensors: list[Any]
    factor: float


def find_holders(
    kinds: TensorKinds,
    time: TimeBudget,
    ignored: Callable[[Any], bool] = lambda tensor: False,
    chains: Chains | None = None,
    is_retired: Callable[[Any], bool] = lambda optimizer: False,
    create_graph_at: tuple[str, int, str] | None = None,
    memory: UnusedMemory | None = None,
) -> FoundHolders:
    """Scan once, within this thread's time, without what :func:`trace` needs.

    ignored          tensors that an earlier scan traced in vain
    chains           how far earlier scans walked through graphs of many steps
    is_retired       of an optimizer: it no longer steps
    create_graph_at  file, line and function of the last backward(create_graph=True)
    memory           what earlier scans saw of models and optimizers
    """
    live = sweep(kinds, time, is_retired)
    not_scanned = [live.not_scanned] if live.not_scanned else []
    wanted = with_python_owner(live, ignored, time, not_scanned)
    models = {id(tensor): weakref.ref(module) for tensor, module in live.models if not ignored(tensor)}
    wanted |= models.keys()
    wanted |= {id(optimizer) for optimizer in live.retired}
    unused = memory.find(live) if memory is not None else []
    wanted |= {id(one.owner) for one in unused}
    groups: list[HeldMemory] = []
    nameless: list[weakref.ref[Any]] = []
    retired: list[weakref.ref[Any]] = []
    complete = True
    if wanted:
        found = every = _search(live, wanted, time, not_scanned)
        complete = found.complete
        if live.retired:
            retired = [
                weakref.ref(one) for one in live.retired if id(one) not in found.paths and id(one) not in found.between
            ]
            used = [
                one for one in live.retired if not found.complete or id(one) in found.paths or id(one) in found.between
            ]
            unused = without_optimizer(unused, used)
            live, models, found = _keep_used_optimizers(live, used, models, found)
        grouping = grouping_of(found.paths.values())
        named, nameless = _named_tensors(live, found, wanted, grouping, time, not_scanned)
        codes, budget = Codes(), NodeBudget(chains)
        ranked, paths_of = _ranked(named, tensors_inside(found, grouping), codes, grouping, live, time, not_scanned)
        for one in ranked:
            groups.append(_weighed(one, paths_of[one.holder.key], found, grouping, live, budget, time))
        groups += [
            group_of_models(holder_of(of_one.paths, codes, grouping), of_one.things, live.known, budget)
            for of_one in _named_models(live, found, grouping).values()
            if len(of_one.things) >= POLICY.untrained_models
        ]
        groups += groups_of_unused(unused, every, codes, grouping, live.known, budget)
        groups = joined(groups)
        not_scanned += _not_walked(budget)
    orphans = [parameter for parameter in live.orphans if not held_by_python(parameter, 2)]
    if orphans and create_graph_at is not None:
        groups.append(group_of_orphans(orphans, live.known, create_graph_at, chains))
    return FoundHolders(
        groups,
        nameless,
        models,
        retired,
        live.known,
        live.tensors,
        live.live_bytes,
        live.optimizers,
        not_scanned,
        complete,
    )


def _search(live: LiveTensors, wanted: set[int], time: TimeBudget, not_scanned: list[str]) -> FoundPaths:
    """Paths from the user's names to the wanted objects."""
    until = time_budget.PATHS - (time_budget.FOR_THE_LAST if time.is_ordinary else 0.0)
    found = find(name_roots.roots(), wanted, time, until, live.tensor_types)
    is_reported = NOT_REACHED in live.not_scanned
    if not found.complete and len(found.paths) + len(found.between) < len(wanted) and not is_reported:
        not_scanned.append(NOT_REACHED)
    return found


def _keep_used_optimizers(
    live: LiveTensors, used: list[Any], models: dict[int, weakref.ref[Any]], found: FoundPaths
) -> tuple[LiveTensors, dict[int, weakref.ref[Any]], FoundPaths]:
    """Retired optimizers that a variable leads to: their parameters and state belong to the model."""
    if len(used) < POLICY.untrained_models:  # more belong to finished trainings: folds, or one for each learning rate
        live = in_use(live, used)
    models = {id(tensor): models[id(tensor)] for tensor, _ in live.models if id(tensor) in models}
    optimizers = {id(optimizer) for optimizer in live.retired}
    return live, models, found._replace(paths={key: path for key, path in found.paths.items() if key not in optimizers})


def _named_tensors(
    live: LiveTensors,
    found: FoundPaths,
    wanted: set[int],
    grouping: Grouping,
    time: TimeBudget,
    not_scanned: list[str],
) -> tuple[dict[HolderKey, _Named], list[weakref.ref[Any]]]:
    """Tensors by holder, and those that no variable leads to."""
    in_flight = name_roots.in_flight()
    keys = KeyCache(grouping)
    named: dict[HolderKey, _Named] = {}
    nameless: list[weakref.ref[Any]] = []
    ours: dict[int, bool] = {}
    for position, tensor in enumerate(live.kept):
        if not position % AT_ONCE and time.over(time_budget.GROUPS, position, LEAST_TENSORS):
            not_scanned.append(f"holders of the older {len(live.kept) - position:,} of {len(live.kept):,} tensors")
            break
        path = found.paths.get(id(tensor))
        if path is not None and leads_through_us(path, ours):
            continue  # the agent's own, through its hooks on a module that a variable leads to
        if path is not None:
            of_one = named.setdefault(keys.of(path), _Named([], []))
            of_one.things.append(tensor)
            of_one.paths.append(path)
        elif id(tensor) in wanted and id(tensor) not in found.between and id(tensor) not in in_flight:
            nameless.append(weakref.ref(tensor))
    # A model that a name leads to is in use; of one that no name leads to, a parameter stands for all.
    nameless += [
        weakref.ref(tensor)
        for tensor, _ in live.models
        if id(tensor) in wanted and id(tensor) not in found.paths and id(tensor) not in found.between
    ]
    return named, nameless


def _named_models(live: LiveTensors, found: FoundPaths, grouping: Grouping) -> dict[HolderKey, _Named]:
    """Whole models without an optimizer, by holder."""
    named: dict[HolderKey, _Named] = {}
    for tensor, module in live.models:
        path = found.paths.get(id(tensor))
        if path is not None:
            of_one = named.setdefault(group_key(path, grouping), _Named([], []))
            of_one.things.append(module)
            of_one.paths.append(path)
    return named


def _ranked(
    named: dict[HolderKey, _Named],
    inside: dict[HolderKey, TensorsInside],
    codes: Codes,
    grouping: Grouping,
    live: LiveTensors,
    time: TimeBudget,
    not_scanned: list[str],
) -> tuple[list[_Ranked], dict[HolderKey, list[Path]]]:
    """Holders in the order in which they are counted, and the paths of each."""
    ranked: list[_Ranked] = []
    paths_of: dict[HolderKey, list[Path]] = {}
    many = sorted(named.values(), key=lambda one: -len(one.things))
    for tensors, paths in many:
        if time.over(time_budget.HOLDERS, len(ranked), LEAST_HOLDERS):
            not_scanned.append(f"some of {len(many):,} variables, those with the fewest tensors")
            break
        if hold_memory(tensors):
            if len(tensors) <= FEW:  # the largest gives the name, where objects of one class have one each
                order = sorted(range(len(tensors)), key=lambda at: -tensors[at].numel())
                tensors, paths = ([those[at] for at in order] for those in (tensors, paths))
            holder = holder_of(paths[:MOST_PATHS], codes, grouping, written=is_written(tensors[0]))
            factor = tensors_each(holder, paths, inside, bool(live.not_scanned), not_scanned)
            ranked.append(_Ranked(holder, tensors, factor))
            paths_of[holder.key] = paths
    # Containers first: the budget is for those with many tensors. Then values that are carried from step to step: the graph of
    # what each step computes from them is long only because theirs is.
    ranked.sort(key=lambda one: (not one.holder.container, not one.holder.carried, -len(one.tensors)))
    return ranked, paths_of


def _weighed(
    ranked: _Ranked,
    paths: list[Path],
    found: FoundPaths,
    grouping: Grouping,
    live: LiveTensors,
    budget: NodeBudget,
    time: TimeBudget,
) -> HeldMemory:
    """What one holder retains, counted from as many of its tensors as the time allows."""
    most = max(MOST_PATHS, int(time.left(time_budget.HOLDERS) / SECONDS_A_TENSOR))
    sampled = spread(ranked.tensors, most)
    group = group_of(ranked.holder, sampled, live.known, budget)
    group.scale(ranked.factor * len(ranked.tensors) / len(sampled))
    group.also_in = also_in(paths, found.again, grouping)
    return group


def _not_walked(budget: NodeBudget) -> Iterator[str]:
    if budget.left <= 0:
        yield "parts of long graphs: their bytes are estimated from the rest"
    if budget.chained_left <= 0:
        yield "older parts of graphs of many steps: their bytes are estimated from the newer ones, or are more"


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """During a scan: no garbage collection, and no ``__torch_function__`` of the user's tensor classes and modes.

    Asking a tensor for its storage would run their code.
    """
    import torch

    with collector_paused(), torch._C.DisableTorchFunction():
        yield


def trace(
    explanation: FoundHolders,
    time: TimeBudget,
    chains: Chains | None = None,
    earlier: Callable[[HolderKey], list[Any]] = lambda key: [],
) -> Traced:
    """Holders of tensors that no variable leads to: reference cycles, libraries, C.

    earlier   tensors that earlier scans found with the same holder and this one left out: they count with it

    Call it within the :func:`undisturbed` of the scan that found them.
    """
    tensors = alive(explanation.nameless)
    keys: dict[int, HolderKey] = {}
    if time.is_ordinary and tensors and time.left() < time.seconds * time_budget.FOR_THE_LAST:
        time = TimeBudget(time.seconds * time_budget.FOR_THE_LAST, time.costs, time.reads)
    if not tensors or time.over():
        return Traced([], not tensors, keys)
    budget = NodeBudget(chains)
    groups, tensors = _of_dead_owners(explanation, tensors, budget, time)
    answers, complete = referrers.trace(tensors, Codes(), time)
    for answer in answers:
        known = explanation.known
        many, times = answer.factors
        modules = [explanation.models[id(tensor)]() for tensor in answer.tensors if id(tensor) in explanation.models]
        if modules:
            times = many  # one parameter stood for each model
            answer.tensors = [tensor for tensor in answer.tensors if id(tensor) not in explanation.models]
        if modules and answer.cyclic:
            # No code can use these models any more: their parameters and gradients count as any other tensor does.
            held = [tensor for module in modules if module is not None for tensor in tensors_of(module)]
            known = without(known, held)
            answer.tensors += held
        may_have_a_name = (
            not answer.cyclic and answer.holder.key.kind is HolderKind.UNKNOWN and not explanation.is_whole
        )
        if not answer.tensors or may_have_a_name:
            continue  # a variable that the search did not reach may have it
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
    return Traced(joined(groups), complete, keys)


def _of_dead_owners(
    explanation: FoundHolders, tensors: list[Any], budget: NodeBudget, time: TimeBudget
) -> tuple[list[HeldMemory], list[Any]]:
    """What optimizers and models hold that no code can use any more, by the cycle that keeps them; and the other tensors."""
    modules = [module for tensor in tensors if (module := explanation.models.get(id(tensor))) is not None]
    groups: list[HeldMemory] = []
    counted: set[int] = set()
    for holder, owners in referrers.in_cycles(alive([*explanation.retired, *modules]), Codes(), time):
        held = list({id(tensor): tensor for owner in owners for tensor in tensors_of(owner)}.values())
        group = group_of(holder, held, without(explanation.known, held), budget)
        group.cyclic = True
        groups.append(group)
        counted.update(map(id, held))
        held.clear()
        owners.clear()
    return groups, [tensor for tensor in tensors if id(tensor) not in counted]
