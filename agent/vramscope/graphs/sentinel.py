"""Knows, at no more than some µs a backward, which autograd graphs of earlier steps are still alive.

A backward's graph gets one sentinel: an object in ``metadata`` of its oldest node, which dies when that C++ node dies. Whatever
keeps a later part of the graph (the loss, the logits, a list of either) keeps the oldest node too, so one object speaks for
all of it. Sentinels of outputs tell of graphs that were built and dropped with no backward in between.

Making the Python wrapper of a node has a price in PyTorch since 2.12: a chain of some 40,000 nodes that were all wrapped
overflows a stack of 8 MB when it is freed. Leaks are such chains, so the descent is bounded, and latched off while old
sentinels accumulate: by then it is known that graphs are kept, and a sentinel in the newest node alone goes on counting them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.wire import MOST_GRAPHS

if TYPE_CHECKING:
    import torch

KEY: Final = "vramscope"
OUTPUT_KEY: Final = "vramscope output"

MOST_HOPS: Final = 64
"""of the descent, at about 0.7 µs each"""
MOST_OLD: Final = 64
"""graphs of earlier steps alive: from then on no descent is made"""
MOST_REACHING: Final = 32
"""backwards in a row whose graph reaches into an earlier step's: a chain that grows; the descent rests"""
REST: Final = 1024
"""backwards that the descent then rests; twice as many each time"""

_NO_NUMBER: Final = 2**64 - 1
"""of AccumulateGrad nodes, which are no operation of any step"""


Birth = tuple[int, int]
"""(step in which a graph was built, backward passes before it)"""


class Sentinel:
    """Lives exactly as long as the node that it was put into."""

    __slots__ = ("_alive", "born", "walks")

    def __init__(self, alive: dict[int, Birth], born: int, walks: int) -> None:
        self._alive = alive
        self.born = born
        self.walks = walks
        alive[id(self)] = (born, walks)

    def __del__(self) -> None:
        self._alive.pop(id(self), None)


class Output(Sentinel):
    """In the newest node of an output; says when it dies before any backward has run."""

    __slots__ = ("_unwalked",)

    def __init__(self, outputs: Outputs, born: int) -> None:
        super().__init__(outputs.alive, born, outputs.walks)
        self._unwalked = outputs

    def __del__(self) -> None:
        super().__del__()
        outputs = self._unwalked
        if outputs.walks == self.walks:
            outputs.dropped += 1


class Outputs:
    """Graphs that were built by the forward of a root module, and what became of them."""

    def __init__(self) -> None:
        self.alive: dict[int, Birth] = {}
        self.walks = 0
        """backward passes so far"""
        self.dropped = 0
        """graphs in a row that were freed though nothing had walked backward since they were built"""

        self.heard = False
        """a root module has given an output with a graph"""

    def walked(self) -> None:
        self.walks += 1
        self.dropped = 0

    def add(self, output: Any, step: int) -> None:
        node = newest_node(output)
        self.heard |= node is not None
        if node is not None and len(self.alive) < MOST_OLD:
            node.metadata[OUTPUT_KEY] = Output(self, step)

    @property
    def pending(self) -> int:
        """Graphs alive that nothing has walked since they were built."""
        return sum(1 for _, walks in list(self.alive.values()) if walks == self.walks)


class Sentinels:
    """One a process; called on the training thread."""

    def __init__(self) -> None:
        self._alive: dict[int, Birth] = {}
        self._reaching = 0
        self._rest = 0
        self._next_rest = REST
        self.reach_steps = 0
        """how many steps back the newest backward's graph reached"""

    def place(self, root: torch.Tensor, step: int) -> None:
        """Put a sentinel into the graph of ``root``, which is about to be walked backward in step ``step``.

        Cost: about 1 µs and 0.7 µs a hop.
        """
        node = root.grad_fn
        if node is None or len(self._alive) >= MOST_GRAPHS:
            return  # (the newest node of each is wrapped, and may be one of a chain)
        if self._rest or len(self._alive) >= MOST_OLD:
            self._rest = max(0, self._rest - 1)
            node.metadata.setdefault(KEY, Sentinel(self._alive, step, 0))
            return
        metadata = oldest_node(node).metadata
        earlier = metadata.get(KEY)
        if earlier is None:
            metadata[KEY] = Sentinel(self._alive, step, 0)
        # (two backwards of one step through the same node are no chain)
        self.reach_steps = 0 if earlier is None else step - earlier.born
        self._reaching = self._reaching + 1 if self.reach_steps > 1 else 0
        if self._reaching >= MOST_REACHING:
            self._reaching, self._rest = 0, self._next_rest
            self._next_rest *= 2

    def older_than(self, step: int) -> int:
        """Graphs of steps before ``step`` that are alive. About 1 µs."""
        alive = self._alive
        fresh = 0
        try:
            for born, _ in reversed(alive.values()):
                if born < step:
                    break
                fresh += 1
        except RuntimeError:
            pass  # a graph was freed by autograd's thread meanwhile
        return max(0, len(alive) - fresh)


def oldest_node(node: Any) -> Any:
    """From a node to the child that was made first, and so on: the first operation of the graph, or MOST_HOPS away."""
    for _ in range(MOST_HOPS):
        oldest, lowest = None, _NO_NUMBER
        for child, _ in node.next_functions:
            if child is not None:
                number = child._sequence_nr()
                if number < lowest:
                    oldest, lowest = child, number
        if oldest is None:
            break
        node = oldest
    return node


def newest_node(output: Any, depth: int = 2) -> Any:
    """The node of the first tensor with a graph in a module's output (a tensor, a sequence, a mapping); None: there is none."""
    import torch

    kind = type(output)
    if issubclass(kind, torch.Tensor):
        return output.grad_fn
    if depth:
        parts: Sequence[Any] = ()
        if issubclass(kind, (tuple, list)):
            parts = output[:8]
        elif issubclass(kind, dict):
            parts = tuple(dict.values(output))[:8]
        for part in parts:
            node = newest_node(part, depth - 1)
            if node is not None:
                return node
    return None
