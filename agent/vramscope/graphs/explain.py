"""One look at what is held: which names keep which tensors and graphs, and how many bytes. A pure reading.

Sweep (every tensor), paths (from local and global names), walks (through the graphs), and, for what no name reaches,
referrers. Bounded in time: what the bound left out is said. It runs on the training thread at a boundary between steps, where
tensors stand still; nothing of the user's runs, and nothing of theirs is kept when it returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from vramscope.collector import collector_paused
from vramscope.graphs import lines, referrers, roots, storages
from vramscope.graphs.holders import Codes, Holder, group_key, holder_of
from vramscope.graphs.paths import Path, find
from vramscope.graphs.storages import Storages, TensorKinds
from vramscope.graphs.sweep import held_by_python, parameters_of, sweep, with_gradients
from vramscope.graphs.walk import Budget, Graph, walk

LEAST_PLAIN_BYTES: Final = 16 * 1024
MOST_GRAPHS_WALKED: Final = 24
"""of one holder; the bytes of the others follow from these"""
LEAST_WALK_SECONDS: Final = 0.05
PART_FOR_SWEEP: Final = 0.5
PART_FOR_PATHS: Final = 0.8
"""of the time, up to the end of the sweep, and of the search for paths"""


@dataclasses.dataclass
class Group:
    """What one holder keeps."""

    holder: Holder
    tensors: int
    graphs: int
    """of the tensors, how many have a graph"""
    scalars: bool
    own: Storages
    """of the tensors themselves"""
    saved: Storages
    """what their graphs keep beside: saved tensors, attributes of custom Functions, parameters of models that are gone"""
    saved_factor: float
    """graphs there are for each that was walked"""
    nodes: int
    births: list[int]
    """sequence numbers at which the graphs' newest operations were made, rising"""
    oldest: int
    """sequence number that the graphs reach back to"""
    attributes: list[tuple[str, int | None, str, int]]
    """(file, line, ``Function.attribute``, bytes) of tensors that a custom Function keeps beside save_for_backward"""
    examples: list[str]
    on_cpu: bool
    references: list[weakref.ref[Any]]
    """to the tensors, at most MOST_GRAPHS_WALKED: to see when they die"""
    cyclic: bool = False
    """nothing but a reference cycle holds it"""
    factor: float = 1.0
    """tensors there are for each that was traced"""

    @property
    def own_bytes(self) -> int:
        return sum(self.own.values())

    @property
    def saved_bytes(self) -> int:
        extra = sum(size for key, size in self.saved.items() if key not in self.own)
        return int(extra * self.saved_factor)

    @property
    def held_bytes(self) -> int:
        return int((self.own_bytes + self.saved_bytes) * self.factor)

    def bytes_beside(self, others: set[int]) -> int:
        """What is held, without the storages of ``others``."""
        return int(
            sum(size for key, size in {**self.saved, **self.own}.items() if key not in others) * self.saved_factor
        )


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


def explain(kinds: TensorKinds, seconds: float, ignored: Callable[[Any], bool] = lambda tensor: False) -> Sight:
    """Look once, for at most about ``seconds`` of this thread's time (one pass over all objects of the process is not cut).

    ignored   tensors that an earlier look has found nothing about
    """
    start = time.thread_time()
    deadline = start + seconds
    seen = sweep(kinds, start + seconds * PART_FOR_SWEEP)
    left_out = [seen.left_out] if seen.left_out else []
    # references: the list, the variable
    wanted = {id(tensor) for tensor in seen.kept if held_by_python(tensor, 2) and not ignored(tensor)}
    models = {id(tensor): weakref.ref(module) for tensor, module in seen.models if not ignored(tensor)}
    wanted |= models.keys()
    groups: list[Group] = []
    nameless: list[weakref.ref[Any]] = []
    if wanted:
        found, complete = find(roots.roots(), wanted, start + seconds * PART_FOR_PATHS)
        if not complete and len(found) < len(wanted):
            left_out.append("some of what your variables hold: too many objects")
        codes = Codes()
        named: dict[tuple[str, ...], tuple[list[Any], list[Path]]] = {}
        for tensor in seen.kept:
            path = found.get(id(tensor))
            if path is not None:
                tensors, paths = named.setdefault(group_key(path), ([], []))
                tensors.append(tensor)
                paths.append(path)
            elif id(tensor) in wanted:
                nameless.append(weakref.ref(tensor))
        # A model that a name leads to is in use; of one that none leads to, a parameter stands for all.
        nameless += [
            weakref.ref(tensor) for tensor, _ in seen.models if id(tensor) in wanted and id(tensor) not in found
        ]
        budget = Budget()
        # However long the passes over all objects took: with nothing walked nothing could be judged.
        deadline = max(deadline, time.thread_time() + LEAST_WALK_SECONDS)
        pairs = [(holder_of(paths, codes), tensors) for tensors, paths in named.values() if _matters(tensors)]
        # Containers first: the budget is for those that hold many.
        pairs.sort(key=lambda pair: (not pair[0].container, -len(pair[1])))
        groups = [group_of(holder, tensors, seen.known, budget, deadline) for holder, tensors in pairs]
        if budget.left <= 0:
            left_out.append("parts of long graphs: their bytes are estimated from the rest")
    taken = time.thread_time() - start
    return Sight(groups, nameless, models, seen.known, seen.tensors, seen.live_bytes, seen.optimizers, left_out, taken)


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


def trace(sight: Sight, seconds: float) -> tuple[list[Group], bool, float]:
    """Who holds tensors that no variable leads to: reference cycles, libraries, C. Groups, whether all was looked at, seconds.

    Within one :func:`undisturbed` with the look that found them.
    """
    start = time.thread_time()
    deadline = start + seconds
    tensors = _alive(sight.nameless)
    if not tensors:
        return [], True, 0.0
    budget = Budget()
    answers, complete = referrers.trace(tensors, Codes(), deadline)
    groups = []
    for answer in answers:
        known = sight.known
        modules = [sight.models[id(tensor)]() for tensor in answer.tensors if id(tensor) in sight.models]
        if modules:
            answer.tensors = [tensor for tensor in answer.tensors if id(tensor) not in sight.models]
        if modules and answer.cyclic:
            # Nobody can use these models any more: their parameters and gradients are held as any other tensor is.
            held = [one for module in modules if module is not None for one in with_gradients(parameters_of(module))]
            own: Storages = {}
            for tensor in held:
                storages.add(own, tensor)
            known = {storage: size for storage, size in known.items() if storage not in own}
            answer.tensors += held
        if not answer.tensors:
            continue
        group = group_of(answer.holder, answer.tensors, known, budget, deadline)
        group.cyclic = answer.cyclic
        group.tensors = round(group.tensors * answer.factor)
        group.factor = answer.factor
        groups.append(group)
        answer.tensors.clear()
    return groups, complete, time.thread_time() - start


def group_of(holder: Holder, tensors: list[Any], known: Storages, budget: Budget, deadline: float) -> Group:
    """Count what ``tensors`` keep alive."""
    own: Storages = {}
    with_graph = []
    for tensor in tensors:
        storages.add(own, tensor)
        if not tensor.is_leaf and tensor.requires_grad:
            with_graph.append(tensor)
    walked = _spread(with_graph, MOST_GRAPHS_WALKED)
    saved: Storages = {}
    births, oldest, nodes, done = [], 2**64, 0, 0
    attributes: dict[tuple[type, str], int] = {}
    for tensor in walked:
        if budget.left <= 0 or time.thread_time() > deadline:
            break
        node = tensor.grad_fn
        if node is None:
            continue
        graph: Graph = walk(node, budget)
        births.append(node._sequence_nr())
        oldest = min(oldest, graph.oldest)
        nodes += graph.nodes
        done += 1
        saved.update(graph.saved)
        saved.update(graph.parameters)
        for function, name, size in graph.attributes:
            attributes[function, name] = max(size, attributes.get((function, name), 0))
    for storage in known:
        saved.pop(storage, None)
    factor = len(with_graph) / done if done else 1.0
    return Group(
        holder=holder,
        tensors=len(tensors),
        graphs=len(with_graph),
        scalars=all(tensor.numel() == 1 for tensor in tensors),
        own={key: size for key, size in own.items() if key not in known},
        saved=saved,
        saved_factor=factor,
        nodes=int(nodes * factor),
        births=sorted(births),
        oldest=oldest,
        attributes=[
            (*_where(function, name), f"{lines.forward_class(function).__name__}.{name}", size)
            for (function, name), size in attributes.items()
        ],
        examples=storages.describe(tensors),
        references=[weakref.ref(tensor) for tensor in walked],
        on_cpu=all(tensor.device.type == "cpu" for tensor in tensors[:16]),
    )


def _where(function: type, name: str) -> tuple[str, int | None]:
    """File and line in a custom Function's forward that set ``ctx.name``."""
    at = lines.context_kept_at(function, name)
    return ("", None) if at is None else (at[0].co_filename, at[1])


def _spread(things: list[Any], most: int) -> list[Any]:
    """At most so many, evenly spread, the first and the last among them."""
    if len(things) <= most:
        return things
    step = (len(things) - 1) / (most - 1)
    return [things[round(position * step)] for position in range(most)]
