"""Sentinels: which autograd graphs of earlier steps are alive, at a cost of some µs per backward.

A backward's graph gets one sentinel: an object in ``metadata`` of its oldest node, which dies with that C++ node. Whatever retains
a later part of the graph (the loss, the logits, a list of either) retains the oldest node too, so one object stands for all of
it. Sentinels of outputs show graphs that were built and dropped without a backward.

Making the Python wrapper of a node has a price in PyTorch since 2.12: a chain of some 40,000 nodes that were all wrapped
overflows a stack of 8 MB when it is freed. Leaks are such chains, so the descent is bounded, and latched off while old
sentinels accumulate: by then it is known that graphs are kept, and a sentinel in the newest node alone goes on counting them.

Where nothing was retained for long, most descents are skipped. A retained loss still counts. Of holders that retain the middle of a
graph, and begin that late, up to six graphs are missed before one is counted, and none afterwards.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.leaks.autograd.unwalked_outputs import NO_NUMBER, UnwalkedOutputs
from vramscope.protocol.series import MOST_GRAPHS

if TYPE_CHECKING:
    import torch

KEY: Final = "vramscope"
OUTPUT_KEY: Final = "vramscope output"

MOST_PARTS: Final = 8
"""Parts of an output that are searched."""
MOST_HOPS: Final = 64
"""Hops of a descent, at about 0.7 µs each."""
HOPS_LOOKED_FOR: Final = 2
"""Hops at the end of a stored descent that are searched again: the last two nodes show whether it goes on."""
MOST_OLD: Final = 64
"""Live graphs of earlier steps from which no descent is made."""
MOST_REACHING: Final = 32
"""Consecutive backwards whose graph reaches into an earlier step, from which the descent pauses: the chain grows."""
REST: Final = 1024
"""Backwards of such a pause; twice as many each time."""
CALM_ROUNDS: Final = 100
"""Consecutive iterations without a live older graph from which most descents are skipped."""
DESCENTS_ONE_IN: Final = 7
"""Number of iterations between two descents then. Prime to common periods: twos, tens, hundreds."""


class Sentinel:
    """Lives exactly as long as its node. (No ``__init__`` and no ``__del__``: neither makes a frame.)"""

    __slots__ = ("__weakref__", "born")
    born: int
    """Step in which its graph was built."""


class OutputGraphs:
    """Graphs that root modules have built, and whether they are alive, dropped or walked."""

    def __init__(self) -> None:
        self._alive: dict[weakref.ref[Sentinel], int] = {}
        """Number of backward passes before each."""
        self._died: deque[weakref.ref[Sentinel]] = deque()
        self._dropped = 0
        self._newest_node = NewestNode()
        self.walks = 0
        """Backward passes so far."""
        self.unwalked = UnwalkedOutputs()
        self.has_roots = False
        """True once a root module returned an output with a graph."""

    def walked(self, roots: Any) -> None:
        """A backward pass begins from these tensors."""
        if self._died:
            self._settle()
        if self._dropped:
            self.unwalked.were_seen = True
        self.unwalked.walked(roots)
        self.walks += 1
        self._dropped = 0

    def add(self, output: Any) -> None:
        """Note the output of a root module. About 4 µs."""
        node = self._newest_node.of(output)
        if node is None:
            return
        self.has_roots = True
        self.unwalked.add(node)
        if self._died:
            self._settle()
        if len(self._alive) < MOST_OLD:
            node.metadata[OUTPUT_KEY] = sentinel = Sentinel()
            self._alive[weakref.ref(sentinel, self._died.append)] = self.walks

    @property
    def alive(self) -> bool:
        """True where any graph is alive."""
        self._settle()
        return bool(self._alive)

    @property
    def dropped(self) -> int:
        """Consecutive graphs that were freed without a backward."""
        self._settle()
        return self._dropped

    @property
    def pending(self) -> int:
        """Live graphs without a backward since they were built."""
        self._settle()
        return sum(walks == self.walks for walks in self._alive.values())

    def _settle(self) -> None:
        # A death on any thread is only noted; it is counted here.
        while self._died:
            self._dropped += self._alive.pop(self._died.popleft()) == self.walks


class Sentinels:
    """One a process; called on the training thread."""

    def __init__(self) -> None:
        self._alive: dict[weakref.ref[Sentinel], int] = {}
        """Step in which each was built."""
        self._gone = self._alive.pop
        self._descent = Descent()
        self._reaching = 0
        self._rest = 0
        self._next_rest = REST
        self._calm_rounds = 0
        self.reach_steps = 0
        """Steps that the newest backward's graph reached back."""

    def place(self, root: torch.Tensor, step: int) -> None:
        """Put a sentinel into the graph of ``root``, from which a backward of step ``step`` is about to begin.

        Cost: about 1 µs; where it descends a hop 0.7 µs, of a graph like the one before 0.4.
        """
        node = root.grad_fn
        if node is None or len(self._alive) >= MOST_GRAPHS:
            return  # the newest node of each graph is wrapped and may belong to a chain
        is_calm = self._calm_rounds >= CALM_ROUNDS and step % DESCENTS_ONE_IN
        if is_calm or self._rest or len(self._alive) >= MOST_OLD:
            if self._rest:
                self._rest -= 1
            metadata = node.metadata
            if KEY not in metadata:
                self._put(metadata, step)
            return
        metadata = self._descent.oldest(node).metadata
        earlier = metadata.get(KEY)
        if earlier is None:
            self._put(metadata, step)
        # two backward passes of one step through the same node are not a chain
        self.reach_steps = 0 if earlier is None else step - earlier.born
        self._reaching = self._reaching + 1 if self.reach_steps > 1 else 0
        if self._reaching >= MOST_REACHING:
            self._reaching, self._rest = 0, self._next_rest
            self._next_rest *= 2

    def _put(self, metadata: dict[str, Any], step: int) -> None:
        metadata[KEY] = sentinel = Sentinel()
        sentinel.born = step
        self._alive[weakref.ref(sentinel, self._gone)] = step

    def end_iteration(self, step: int) -> int:
        """End an iteration. Returns :meth:`older_than`, which decides how often to descend."""
        old = self.older_than(step)
        self._calm_rounds = 0 if old else self._calm_rounds + 1
        return old

    def older_than(self, step: int) -> int:
        """Live graphs of steps before ``step``. About 1 µs."""
        alive = self._alive
        if not alive:
            return 0
        fresh = 0
        try:
            for born in reversed(alive.values()):
                if born < step:
                    break
                fresh += 1
        except RuntimeError:
            pass  # a graph was freed by autograd's thread meanwhile
        return max(0, len(alive) - fresh)


class Descent:
    """Descent from the newest node of a graph to its oldest: from each to the child that was made first, MOST_HOPS at most.

    A training builds the same graph in each step. So the hops are stored, but for the last ones, and repeated without asking
    every child for its number. Where the graph differs, hop by hop or at its end, it is searched again.
    """

    def __init__(self) -> None:
        self._span = -1
        """Operations from the newest node to the oldest, in the previous graph."""
        self._way: list[Hop] = []
        """Stored hops; empty where the last two graphs differed."""

    def oldest(self, node: Any) -> Any:
        newest = node._sequence_nr()
        if self._way:
            oldest = self._along(node)
            if oldest is not None and newest - oldest._sequence_nr() == self._span:
                return oldest
            self._way = []
        oldest, way = _look_down(node, MOST_HOPS)
        span = newest - oldest._sequence_nr()
        if span == self._span:
            self._way = way[:-HOPS_LOOKED_FOR]
        self._span = span
        return oldest

    def _along(self, node: Any) -> Any:
        """Follow the stored hops. None where the graph is another one."""
        for children_then, place in self._way:
            children = node.next_functions
            if len(children) != children_then:
                return None
            node = children[place][0]
            if node is None:
                return None
        return _look_down(node, HOPS_LOOKED_FOR)[0]


Hop = tuple[int, int]
"""Number of children of a node, and which of them was made first."""


def _look_down(node: Any, most_hops: int) -> tuple[Any, list[Hop]]:
    """The oldest node within this many hops, and the hops to it."""
    way: list[Hop] = []
    for _ in range(most_hops):
        children = node.next_functions
        oldest, lowest, place = None, NO_NUMBER, 0
        for at, (child, _) in enumerate(children):
            if child is not None:
                number = child._sequence_nr()
                if number < lowest:
                    oldest, lowest, place = child, number, at
        if oldest is None:
            break
        node = oldest
        way.append((len(children), place))
    return node, way


class NewestNode:
    """Finds the node of the first tensor with a graph in a module's output."""

    def __init__(self) -> None:
        import torch

        self._tensor = torch.Tensor

    def of(self, output: Any, depth: int = 2) -> Any:
        """``output``: a tensor, a sequence, a mapping. None where it has no graph."""
        kind = type(output)
        if issubclass(kind, self._tensor):
            return output.grad_fn
        if depth:
            parts: Sequence[Any] = ()
            if issubclass(kind, (tuple, list)):
                parts = output[:MOST_PARTS]
            elif issubclass(kind, dict):
                parts = tuple(dict.values(output))[:MOST_PARTS]
            for part in parts:
                node = self.of(part, depth - 1)
                if node is not None:
                    return node
        return None


def nodes_of(output: Any, depth: int = 2) -> list[Any]:
    """Nodes of all tensors with a graph in a module's output, searched as by :class:`NewestNode`."""
    import torch

    kind = type(output)
    if issubclass(kind, torch.Tensor):
        return [] if output.grad_fn is None else [output.grad_fn]
    parts: Sequence[Any] = ()
    if depth and issubclass(kind, (tuple, list)):
        parts = output[:MOST_PARTS]
    elif depth and issubclass(kind, dict):
        parts = tuple(dict.values(output))[:MOST_PARTS]
    return [node for part in parts for node in nodes_of(part, depth - 1)]
