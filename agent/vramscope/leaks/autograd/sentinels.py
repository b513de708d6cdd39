"""Knows, at no more than some µs a backward, which autograd graphs of earlier steps are still alive.

A backward's graph gets one sentinel: an object in ``metadata`` of its oldest node, which dies when that C++ node dies. Whatever
keeps a later part of the graph (the loss, the logits, a list of either) keeps the oldest node too, so one object speaks for
all of it. Sentinels of outputs tell of graphs that were built and dropped with no backward in between.

Making the Python wrapper of a node has a price in PyTorch since 2.12: a chain of some 40,000 nodes that were all wrapped
overflows a stack of 8 MB when it is freed. Leaks are such chains, so the descent is bounded, and latched off while old
sentinels accumulate: by then it is known that graphs are kept, and a sentinel in the newest node alone goes on counting them.

Where nothing has been kept for long, most descents are left out. A loss that is kept is counted as ever; of what keeps the middle
of a graph, and begins so late, up to six are missed in the count before one is seen, and from then on none is.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.protocol.series import MOST_GRAPHS

if TYPE_CHECKING:
    import torch

KEY: Final = "vramscope"
OUTPUT_KEY: Final = "vramscope output"

MOST_PARTS: Final = 8
"""of an output's, that are looked at"""
MOST_HOPS: Final = 64
"""of the descent, at about 0.7 µs each"""
HOPS_LOOKED_FOR: Final = 2
"""at the end of a way that is remembered: whether it goes on, and whether a branch is older, shows in the last two nodes"""
MOST_OLD: Final = 64
"""graphs of earlier steps alive: from then on no descent is made"""
MOST_REACHING: Final = 32
"""backwards in a row whose graph reaches into an earlier step's: a chain that grows; the descent rests"""
REST: Final = 1024
"""backwards that the descent then rests; twice as many each time"""
CALM_ROUNDS: Final = 100
"""in a row, after each of which nothing of earlier ones was alive"""
DESCENTS_ONE_IN: Final = 7
"""rounds, when it is calm; prime to what is done each so many steps: twos, tens, hundreds"""

NO_NUMBER: Final = 2**64 - 1
"""of AccumulateGrad nodes, which are no operation of any step"""


class Sentinel:
    """Lives exactly as long as the node that it was put into. (No ``__init__`` and no ``__del__``: neither makes a frame.)"""

    __slots__ = ("__weakref__", "born")
    born: int
    """step in which its graph was built"""


class Outputs:
    """Graphs that were built by the forward of a root module, and what became of them."""

    def __init__(self) -> None:
        self._alive: dict[weakref.ref[Sentinel], int] = {}
        """and the backward passes before each"""
        self._died: deque[weakref.ref[Sentinel]] = deque()
        self._dropped = 0
        self._newest_node = NewestNode()
        self.walks = 0
        """backward passes so far"""
        self.heard = False
        """a root module has given an output with a graph"""

    def walked(self) -> None:
        if self._died:
            self._settle()
        self.walks += 1
        self._dropped = 0

    def add(self, output: Any) -> None:
        """A root module has answered. Some 4 µs between a training's kernels."""
        node = self._newest_node.of(output)
        if node is None:
            return
        self.heard = True
        if self._died:
            self._settle()
        if len(self._alive) < MOST_OLD:
            node.metadata[OUTPUT_KEY] = sentinel = Sentinel()
            self._alive[weakref.ref(sentinel, self._died.append)] = self.walks

    @property
    def alive(self) -> bool:
        """There are some."""
        self._settle()
        return bool(self._alive)

    @property
    def dropped(self) -> int:
        """Graphs in a row that were freed though nothing had walked backward since they were built."""
        self._settle()
        return self._dropped

    @property
    def pending(self) -> int:
        """Graphs alive that nothing has walked since they were built."""
        self._settle()
        return sum(walks == self.walks for walks in self._alive.values())

    def _settle(self) -> None:
        # Whoever frees a graph, on whatever thread, only notes it: what it means is found out here.
        while self._died:
            self._dropped += self._alive.pop(self._died.popleft()) == self.walks


class Sentinels:
    """One a process; called on the training thread."""

    def __init__(self) -> None:
        self._alive: dict[weakref.ref[Sentinel], int] = {}
        """and the step in which each was built"""
        self._gone = self._alive.pop
        self._descent = Descent()
        self._reaching = 0
        self._rest = 0
        self._next_rest = REST
        self._calm_rounds = 0
        self.reach_steps = 0
        """how many steps back the newest backward's graph reached"""

    def place(self, root: torch.Tensor, step: int) -> None:
        """Put a sentinel into the graph of ``root``, which is about to be walked backward in step ``step``.

        Cost: about 1 µs; where it descends a hop 0.7 µs, of a graph like the one before 0.4.
        """
        node = root.grad_fn
        if node is None or len(self._alive) >= MOST_GRAPHS:
            return  # (the newest node of each is wrapped, and may be one of a chain)
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
        # (two backwards of one step through the same node are no chain)
        self.reach_steps = 0 if earlier is None else step - earlier.born
        self._reaching = self._reaching + 1 if self.reach_steps > 1 else 0
        if self._reaching >= MOST_REACHING:
            self._reaching, self._rest = 0, self._next_rest
            self._next_rest *= 2

    def _put(self, metadata: dict[str, Any], step: int) -> None:
        metadata[KEY] = sentinel = Sentinel()
        sentinel.born = step
        self._alive[weakref.ref(sentinel, self._gone)] = step

    def end_round(self, step: int) -> int:
        """A round is over: :meth:`older_than`, by which it is known how closely to watch."""
        old = self.older_than(step)
        self._calm_rounds = 0 if old else self._calm_rounds + 1
        return old

    def older_than(self, step: int) -> int:
        """Graphs of steps before ``step`` that are alive. About 1 µs."""
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
    """From the newest node of a graph to its oldest: from each to the child that was made first, MOST_HOPS at most.

    A training builds the same graph in each step: the way down is remembered but for its end, and taken again without asking
    every child for its number. Where it does not look as it did, hop by hop, or ends elsewhere, it is looked for anew.
    """

    def __init__(self) -> None:
        self._span = -1
        """operations from the newest node to the oldest, in the graph before"""
        self._way: list[Hop] = []
        """empty: the last two graphs were not alike"""

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
        """None: the graph is another one."""
        for children_then, place in self._way:
            children = node.next_functions
            if len(children) != children_then:
                return None
            node = children[place][0]
            if node is None:
                return None
        return _look_down(node, HOPS_LOOKED_FOR)[0]


Hop = tuple[int, int]
"""how many children a node has, and which of them was made first"""


def _look_down(node: Any, most_hops: int) -> tuple[Any, list[Hop]]:
    """The oldest node, or so many hops away; and the way."""
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
        """``output``: a tensor, a sequence, a mapping. None: there is no graph in it."""
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
    """The nodes of all tensors with a graph in a module's output, as :class:`NewestNode` looks through it."""
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
