"""What one holder keeps: its tensors, their graphs, and the bytes of both."""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

from vramscope.leaks.autograd.graph_walk import NODE_BYTES, Graph, NodeBudget, walk
from vramscope.leaks.holders import line_search
from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.key import HolderKey
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages
from vramscope.leaks.scan.tensors import add_with_gradient
from vramscope.memory.peak_counters import block_bytes
from vramscope.process import type_info
from vramscope.protocol import messages

MOST_GRAPHS_WALKED: Final = 27
"""Maximum number of graphs of one holder that are walked; the bytes of the others are extrapolated."""
RUN: Final = 9
"""Number of walked graphs that are neighbours in age: what they share shows how much one more adds. Eight after the first,
so that each of a step's two or four losses occurs equally often."""
MOST_WORDS: Final = 4096
"""Maximum number of characters of a text on the wire."""


@dataclasses.dataclass
class HeldMemory:
    """What one holder keeps."""

    holder: Holder
    tensors: int
    graphs: int
    """Number of tensors that have a graph."""
    scalars: bool
    own: Storages
    """Storages of the tensors and of the gradients of leaves."""
    saved: Storages
    """Storages that only their graphs retain: saved tensors, attributes of custom Functions, parameters of freed models."""
    saved_factor: float
    """Total bytes per counted byte, if not all graphs were walked."""
    nodes: int
    births: list[int]
    """Sequence numbers of the graphs' newest operations, rising."""
    oldest: int
    """Sequence number of the oldest operation."""
    attributes: list[tuple[str, int | None, str, int]]
    """(file, line, ``Function.attribute``, bytes) of tensors that a custom Function keeps beside save_for_backward"""
    examples: list[str]
    seen_bytes: int
    """Bytes of the tensors' elements; the tensors may be views of larger storages."""
    on_cpu: bool
    cut_short: bool
    """True if a graph was too long to be walked to its end."""
    goes_on: bool
    """True if such a graph continues in operations of earlier steps."""
    references: list[weakref.ref[Any]]
    """References to at most MOST_GRAPHS_WALKED tensors, to see when they are freed."""
    operations: frozenset[int] = frozenset()
    """Sequence numbers of the visited operations of its graphs."""
    leaves: frozenset[int] = frozenset()
    """Storages that no operation saved and gradients flow to: inputs with gradients, parameters of freed models."""
    cyclic: bool = False
    """True if only a reference cycle retains it."""
    factor: float = 1.0
    """Number of tensors per scanned tensor."""
    also_in: frozenset[HolderKey] = frozenset()
    """Keys of unbounded containers that retain all of it too."""
    models: int = 0
    """Number of whole models that no longer train, with their optimizers' state."""
    is_idle: bool = False
    """True for the state of an optimizer that no longer steps."""
    rows: int = 0
    """Rows of all its tensors along their first dimension."""
    nodes_in_python: bool = False
    """True if a Python object refers to the newest autograd node (``grad_fn``) of each tensor whose graph is walked: freeing the
    tensors frees no graph."""

    def scale(self, factor: float, of_bytes: float | None = None) -> None:
        """Extrapolate from a sample: multiply the counts by ``factor``, and the bytes by ``of_bytes`` or ``factor``."""
        self.factor = factor if of_bytes is None else of_bytes
        self.tensors, self.graphs, self.nodes, self.rows = (
            round(count * factor) for count in (self.tensors, self.graphs, self.nodes, self.rows)
        )

    def join(self, other: HeldMemory) -> None:
        """What the same holder keeps in another way: tensors in its containers, and whole models."""
        held = self.held_bytes + other.held_bytes
        self.tensors += other.tensors
        self.graphs += other.graphs
        self.nodes += other.nodes
        self.scalars &= other.scalars
        self.on_cpu &= other.on_cpu
        self.cut_short |= other.cut_short
        self.goes_on |= other.goes_on
        self.own |= other.own
        self.seen_bytes += other.seen_bytes
        self.saved |= other.saved
        self.births = sorted(self.births + other.births)
        self.operations |= other.operations
        self.oldest = min(self.oldest, other.oldest)
        self.attributes += other.attributes
        self.examples += other.examples
        self.references += other.references
        self.models += other.models
        self.rows += other.rows
        self.factor = 1.0
        self.factor = held / (self.held_bytes or 1)

    def lengthen(self, factor: float) -> None:
        """Its graphs go ``factor`` times as far as they were walked."""
        self.saved_factor *= factor
        self.nodes = round(self.nodes * factor)

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

    @property
    def full_bytes(self) -> int | None:
        """Bytes that it retains once its container is full; None without a bound."""
        bound, size = self.holder.bound, self.holder.size
        if bound is None or not size:
            return None
        elements = min(size, self.tensors or size)  # the newest element may not be counted yet
        return int(self.held_bytes * max(1.0, bound / elements))

    def bytes_beside(self, others: set[int]) -> int:
        """Retained storages, without those of ``others``."""
        beside = sum(size for key, size in {**self.saved, **self.own}.items() if key not in others)
        return int(beside * self.saved_factor * self.factor)

    def as_leak(self, kind: str, **fields: Any) -> messages.Leak:
        """In the wire's words, with other ``fields``: who holds it, where, and how many bytes."""
        holder = self.holder
        return messages.Leak(
            kind=kind,
            name=holder.name or "?",
            holder=holder.words[:MOST_WORDS],
            chain=[link[:MOST_WORDS] for link in holder.chain],
            file=holder.file,
            line=holder.line or None,
            function=holder.function,
            held_bytes=self.held_bytes,
            full_bytes=self.full_bytes,
            node_bytes=self.nodes * NODE_BYTES,
            examples=self.examples,
            **fields,
        )


def joined(groups: Iterable[HeldMemory]) -> list[HeldMemory]:
    """One group a holder."""
    found: dict[HolderKey, HeldMemory] = {}
    for group in groups:
        first = found.setdefault(group.holder.key, group)
        if first is not group:
            first.join(group)
    return list(found.values())


def group_of(holder: Holder, tensors: list[Any], known: Storages, budget: NodeBudget) -> HeldMemory:
    """Count what ``tensors`` keep alive. How old their graphs are is read of each, the bytes as far as the budget reaches."""
    own: Storages = {}
    with_graph = []
    for tensor in tensors:
        add_with_gradient(own, tensor)
        if not tensor.is_leaf and tensor.requires_grad:
            with_graph.append(tensor)
    chosen = _runs(with_graph, MOST_GRAPHS_WALKED)
    # Before the list of nodes refers to them.
    nodes_in_python = bool(with_graph) and all(_has_node_in_python(tensor) for run in chosen for tensor in run)
    nodes = [[(node, tensor.numel()) for tensor in run if (node := tensor.grad_fn) is not None] for run in chosen]
    newest = {node: node._sequence_nr() for run in nodes for node, _ in run}
    saved: Storages = {}
    leaves: set[int] = set()
    operations: set[int] = set()
    oldest, visited, cut_short, goes_on = min(newest.values(), default=2**64), 0, False, False
    attributes: dict[tuple[type, str], int] = {}
    firsts: list[int] = []
    others: dict[int, list[int]] = {}
    """Bytes of a group's first graph, and the additional bytes of each further one by the size of its result."""
    nodes_by_size: dict[int, list[int]] = {}
    """Nodes of the walked graphs by the size of their results."""
    walks: list[Walk] = []
    for run in nodes:
        of_run: Storages = {}
        for node, size in run:
            if budget.left <= 0:
                break
            graph: Graph = walk(node, budget)
            operations |= graph.numbers
            # Each thread has its own numbers, and create_graph=True makes nodes in autograd's. None is older than its graph.
            newest[node] = max(graph.numbers, default=newest[node])
            oldest = min(oldest, graph.oldest)
            visited += graph.nodes
            nodes_by_size.setdefault(size, []).append(graph.nodes)
            cut_short |= not graph.complete
            goes_on |= graph.goes_on
            leaves |= graph.parameters.keys() - graph.saved.keys()
            its = {key: size for key, size in {**graph.saved, **graph.parameters}.items() if key not in known}
            beside = sum(size for key, size in its.items() if key not in of_run)
            (others.setdefault(size, []) if of_run else firsts).append(beside)
            walks.append(Walk(beside, max(1, node._sequence_nr() - graph.oldest), graph.complete))
            of_run |= its
            for function, name, held in graph.attributes:
                attributes[function, name] = max(held, attributes.get((function, name), 0))
        saved |= of_run
    walked = len(walks)
    births = sorted(newest[node] for run in nodes for node, _ in run)
    factor = len(with_graph) / walked if walked else 1.0
    saved_factor = factor
    if factor > 1 and others and (counted := sum(saved.values())):
        # Losses of one step share its activations: what one more graph adds is less than what a graph has.
        saved_factor = (fmean(firsts) + _mean_of_all(others, with_graph) * (len(with_graph) - 1)) / counted
    if factor > 1:
        visited = round(_mean_of_all(nodes_by_size, with_graph) * len(with_graph))
    if births and births[-1] - births[0] <= budget.chains.step_numbers:
        unequal = _of_unequal_walks(walks)
        saved_factor, visited = saved_factor * unequal, round(visited * unequal)
    return HeldMemory(
        holder=holder,
        tensors=len(tensors),
        graphs=len(with_graph),
        scalars=all(tensor.numel() == 1 for tensor in tensors),
        own={key: size for key, size in own.items() if key not in known},
        saved=saved,
        saved_factor=saved_factor,
        nodes=visited,
        births=births,
        oldest=oldest,
        attributes=[
            (*_where(function, name), f"{type_info.name_of(line_search.forward_class(function))}.{name}", size)
            for (function, name), size in attributes.items()
        ],
        examples=storages.describe(tensors),
        seen_bytes=sum(map(_seen_bytes, tensors)),
        cut_short=cut_short,
        goes_on=goes_on,
        operations=frozenset(operations),
        leaves=frozenset(leaves),
        references=[weakref.ref(tensor) for tensor in spread(with_graph or tensors, MOST_GRAPHS_WALKED)],
        on_cpu=all(tensor.device.type == "cpu" for tensor in tensors[:16]),
        rows=sum(map(_rows_of, tensors)),
        nodes_in_python=nodes_in_python,
    )


def _has_node_in_python(tensor: Any) -> bool:
    """Whether a Python object refers to the node that made the tensor. One of a custom Function may refer to itself."""
    try:
        return sys.getrefcount(tensor.grad_fn) > references_to_node()
    except RuntimeError:
        return False  # a view of what was changed in place has none


@functools.cache
def references_to_node() -> int:
    """References to the node of a tensor to which Python has none of its own. PyTorch has some, depending on its version."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        result = torch.zeros(1, device="cpu", requires_grad=True) * 2
    result.grad_fn.metadata["vramscope"] = None  # as a sentinel does
    return sys.getrefcount(result.grad_fn)


def _mean_of_all(by_size: dict[int, list[int]], tensors: list[Any]) -> float:
    """Mean bytes of graphs, from those of some, by the size of their results. Each size counts as often as it occurs: a step's
    loss and its logits have graphs of two kinds, and of one kind more may have been walked."""
    if len(by_size) == 1:
        return fmean(*by_size.values())
    occurs = Counter(tensor.numel() for tensor in tensors)
    number = sum(occurs[size] for size in by_size)
    return sum(occurs[size] * fmean(held) for size, held in by_size.items()) / number


def _rows_of(tensor: Any) -> int:
    """Of its first dimension; 1 for what has none, or no sizes (a nested tensor)."""
    try:
        return int(tensor.shape[0]) if tensor.dim() else 1
    except (RuntimeError, NotImplementedError):
        return 1


class Walk(NamedTuple):
    """How far one graph was walked."""

    saved_bytes: int
    span: int
    """Number of operations between its newest and its oldest visited one."""
    complete: bool


def _of_unequal_walks(walks: Sequence[Walk]) -> float:
    """Bytes there are for each that was counted, where values are carried on side by side (a shadow of each weight): the walk
    of the first may have left nothing for the others', which go as far."""
    farthest = max((walk.span for walk in walks), default=1)
    counted = sum(walk.saved_bytes for walk in walks)
    estimated = sum(walk.saved_bytes * (1.0 if walk.complete else farthest / walk.span) for walk in walks)
    return estimated / counted if counted else 1.0


def _seen_bytes(tensor: Any) -> int:
    """What its elements take if they stand alone: on a GPU whole blocks, as what it stands on is counted in blocks."""
    size: int = tensor.numel() * tensor.dtype.itemsize
    return size if tensor.device.type == "cpu" else block_bytes(size)


def _where(function: type, name: str) -> tuple[str, int | None]:
    """File and line in a custom Function's forward that set ``ctx.name``."""
    at = line_search.context_kept_at(function, name)
    return ("", None) if at is None else (at[0].co_filename, at[1])


def _runs(things: list[Any], most: int) -> list[list[Any]]:
    """Select at most this many, in groups of neighbours, evenly spread, with the first and the last."""
    if len(things) <= most:
        return [things]
    step = (len(things) - RUN) / (most // RUN - 1)
    return [things[at : at + RUN] for at in (round(position * step) for position in range(most // RUN))]


def spread(things: list[Any], most: int) -> list[Any]:
    """Select at most this many, evenly spread, with the first and the last."""
    if len(things) <= most:
        return things
    step = (len(things) - 1) / (most - 1)
    return [things[round(position * step)] for position in range(most)]
