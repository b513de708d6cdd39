"""Measures a graph that an evaluation builds and drops, and that no variable retains.

A scan found an evaluation with gradients on. Whether the next call belongs to it is not known: the evaluation may have ended.
So calls are measured one after the other, and one counts only if its own graph is dropped too, without a backward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from vramscope.leaks.autograd.graph_walk import NodeBudget, walk
from vramscope.leaks.autograd.live_graphs import OUTPUT_KEY, NewestNode, OutputGraphs, Sentinel
from vramscope.leaks.policy import material_bytes
from vramscope.leaks.scan.scanner import Scanner
from vramscope.leaks.scan.storages import Storages
from vramscope.process import frames, type_info

ATTEMPTS: Final = 8
"""Maximum number of graphs that are measured for one scan: some ms each."""

Place = tuple[str, int, str]
"""File, line and function of a call."""


class UnusedGraph(NamedTuple):
    """A graph that was dropped without a backward pass."""

    module: str
    place: Place | None
    """Where the user's code called the module."""
    saved_bytes: int
    """Bytes saved for a backward pass, without the tensors that were known at the scan."""
    nodes: int


class EvaluationGraph:
    """One a session, on the training thread. It keeps no node and no tensor.

    found   called with a graph that was measured and dropped, if it is large enough
    """

    def __init__(self, outputs: OutputGraphs, scanner: Scanner, found: Callable[[UnusedGraph], None]) -> None:
        self._outputs, self._scanner, self._found = outputs, scanner, found
        self._known: Storages | None = None
        """Storages that are not the graph's; None where no measurement is wanted."""
        self._attempts = 0
        self._used: set[Place | None] = set()
        """Calls whose graph was there when a backward pass began."""
        self._measured: UnusedGraph | None = None
        """A graph that was measured, and may yet get its backward pass."""
        self._alive: weakref.ref[Sentinel] | None = None
        self._walks = 0
        """Number of backward passes before it."""

    @property
    def waits(self) -> bool:
        """True if a measurement is wanted, or one is not settled."""
        return self._known is not None or self._measured is not None

    def expect(self, known: Storages) -> None:
        """Measure one of the next graphs. ``known``: storages of models and data, which exist without it."""
        self._known, self._attempts = known, ATTEMPTS

    def built(self, module: Any, output: Any) -> None:
        """A root module has returned on the training thread. Call it only while this waits."""
        self.settle()
        if self._known is None or self._measured is not None:
            return
        node, place = NewestNode().of(output), frames.user_line()
        mark = None if node is None else node.metadata.get(OUTPUT_KEY)
        # One function may serve the training and the evaluation: then graphs were dropped before this one.
        if mark is None or (place in self._used and not self._outputs.dropped):
            return
        graph = walk(node, NodeBudget(self._scanner.chains))
        saved_bytes = sum(size for storage, size in graph.saved.items() if storage not in self._known)
        self._measured = UnusedGraph(type_info.name_of(type(module)), place, saved_bytes, graph.nodes)
        self._alive, self._walks = weakref.ref(mark), self._outputs.walks
        self._attempts -= 1
        if not self._attempts:
            self._known = None

    def settle(self) -> None:
        """Report the measured graph if it was dropped. After a backward pass it may have been used, and is forgotten."""
        measured = self._measured
        if measured is None or self._alive is None:
            return
        if self._walks != self._outputs.walks:
            self._used.add(measured.place)
            self._measured = None
        elif self._alive() is None:
            self._measured = self._known = None
            if measured.saved_bytes >= material_bytes(self._scanner.live_bytes):
                self._found(measured)
