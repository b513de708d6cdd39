"""Graphs that are built in a step and freed in it without a backward pass, such as a target network whose result is detached later.

No variable holds them when a scan runs. So in the step after a scan, a hook is placed in the graph of each root module's output.
If the graph dies before the hook is called, it is suspected. After the next scan the same output is followed again and its bytes
are measured. Then each end of the graph has a hook, so that a backward pass through any part of it is seen.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.leaks.autograd.graph_walk import Chains, NodeBudget, walk
from vramscope.leaks.autograd.live_graphs import nodes_of
from vramscope.leaks.autograd.unwalked_outputs import NO_NUMBER
from vramscope.leaks.holders import line_search
from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.verdict.peak_effect import NOT_MEASURED, NOT_ON_CPU, Effect, PeakFollower, effect_of_made
from vramscope.process import frames, type_info
from vramscope.process.hook_numbers import own_hook_numbers

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval

MOST_FOLLOWED: Final = 16
"""Maximum number of outputs that are followed in one step."""
MOST_NODES: Final = 10_000
"""Maximum number of nodes of one graph that are read: 3 µs each, once or twice a run."""
MOST_MARKS: Final = 1_024
"""Maximum number of marked nodes of one graph: 3 µs each, and 2 µs when a backward pass reaches one."""

Key = tuple[str, int, str, int]
"""File, line, class of the module, id of the module (never dereferenced)."""


class GraphOrigin(NamedTuple):
    """Where a graph is made that nothing walks."""

    module: str
    variable: str | None
    """Variable that the line assigns."""
    file: str
    line: int
    function: str


class DroppedGraph(NamedTuple):
    origin: GraphOrigin
    graphs: int
    """Number of graphs of that line in one step."""
    saved_bytes: int
    """Bytes saved for a backward pass, without the model's own tensors and the module's arguments."""
    nodes: int
    effect: Effect


class _Mark:
    """Lives in nodes of one graph, as long as one of them does. Autograd calls it before it walks there, on a thread of its own."""

    __slots__ = ("__weakref__", "_followed")

    def __init__(self, followed: _Followed) -> None:
        self._followed = followed

    def __call__(self, gradients: Any) -> None:
        self._followed.walked = True


class _Followed:
    """One output's graph."""

    def __init__(self, key: Key, place: GraphOrigin, walks: int) -> None:
        self.key, self.origin = key, place
        self.walks = walks
        """Number of backward passes before it."""
        self.walked = False
        self.is_for_training = False
        """True if it was alive at a later backward pass. A batch of an evaluation is gone by then."""
        self.mark: weakref.ref[_Mark] | None = None
        self.saved_bytes, self.nodes = 0, 0
        self.follower: PeakFollower | None = None
        self.since: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.mark is not None and self.mark() is not None


class StepGraphs:
    """One a session, on the training thread. It keeps no node and no tensor.

    found     called with what two steps have shown, and again with what a later one shows
    withdraw  called with the place of one whose graph was walked after all
    """

    def __init__(
        self,
        clock: StepClock,
        kinds: TensorKinds,
        chains: Chains,
        found: Callable[[DroppedGraph], None],
        withdraw: Callable[[GraphOrigin], None],
    ) -> None:
        import torch

        self._clock, self._kinds, self._chains = clock, kinds, chains
        self._found, self._withdraw = found, withdraw
        self._level: Callable[[], int | None] = torch._C._functorch.maybe_current_level
        self.follows = False
        """True if outputs are followed in the running step."""
        self.waits = False
        """True after such a step: its results must be freed before the next forward pass."""
        self._followed: list[_Followed] = []
        self._suspected: set[Key] = set()
        self._effects: dict[Key, Effect] = {}
        self._known: Storages = {}
        self._material_bytes, self._since_number = 0, 0

    def begin(self, known: Storages, material_bytes: int, since_number: int) -> None:
        """Follow what is built in this step.

        known           storages of the models
        material_bytes  less is not worth a word
        since_number    autograd's sequence number when it began
        """
        self._followed.clear()
        self._effects.clear()
        self._known, self._material_bytes, self._since_number = known, material_bytes, since_number
        self.follows, self.waits = not _autograd_is_compiled(), False

    def follow(self, module: Any, args: tuple[Any, ...], output: Any, walks: int) -> None:
        """A root module has returned. Costs 20 µs; the graph of a suspect is read."""
        at = frames.user_place()
        if len(self._followed) >= MOST_FOLLOWED or at is None or self._level() is not None:
            return
        code, line = at
        name = type_info.name_of(type(module))
        key = (code.co_filename, line, name, id(module))
        place = GraphOrigin(name, line_search.stored_on(code, line), code.co_filename, line, code.co_name)
        followed = _Followed(key, place, walks)
        nodes = nodes_of(output)
        if nodes and key in self._suspected:
            ends = _where_walks_end(nodes, self._since_number)
            if ends is None:
                return  # too large to be sure, or it goes on in an earlier step's
            self._weigh(followed, nodes, args)
            nodes = [*nodes, *ends]
        if nodes:
            mark = _Mark(followed)
            with own_hook_numbers():
                for node in nodes:
                    node.register_prehook(mark)
            followed.mark = weakref.ref(mark)
            if followed.saved_bytes and len(self._clock.counters) == 1:
                followed.since = self._clock.mark()
                followed.follower = PeakFollower([mark], followed.saved_bytes, self._clock.mark)
            self._followed.append(followed)

    def before_walk(self) -> None:
        """A backward is about to begin."""
        for followed in self._followed:
            followed.is_for_training = followed.is_for_training or followed.is_alive

    def end_step(self, stretches: Sequence[PhaseInterval]) -> None:
        """The step is over, and these were its stretches."""
        self.follows, self.waits = False, bool(self._followed)
        self._known = {}
        made: dict[Key, list[tuple[PeakFollower, int]]] = {}
        for followed in self._followed:
            if followed.follower is not None:
                its = made.setdefault(followed.key, [])
                if followed.since is None:
                    self._effects[followed.key] = NOT_MEASURED
                else:
                    its.append((followed.follower, followed.since))
                followed.follower = None
        self._effects = {key: effect_of_made(its, stretches, 0) for key, its in made.items() if its} | self._effects

    def settle(self, walks: int) -> None:
        """The next forward pass is about to begin. What is still alive is retained by a variable, which scans find."""
        followed, self._followed, self.waits = self._followed, [], False
        # Several from one place with no backward between may be an evaluation, which is judged as one.
        together = Counter((one.key, one.walks) for one in followed)
        for one in followed:
            if one.walked:
                self._suspected.discard(one.key)
                self._withdraw(one.origin)
        walked = {one.key for one in followed if one.walked or one.is_alive}
        unwalked: dict[Key, list[_Followed]] = {}
        for one in followed:
            evaluates = together[one.key, one.walks] >= POLICY.dropped_graphs and not one.is_for_training
            if one.key not in walked and not evaluates and walks != followed[0].walks:
                unwalked.setdefault(one.key, []).append(one)
        for key, ones in unwalked.items():
            saved_bytes = sum(one.saved_bytes for one in ones)
            if key not in self._suspected:
                self._suspected.add(key)
            elif saved_bytes >= self._material_bytes:
                nodes = sum(one.nodes for one in ones)
                effect = self._effects.get(key, NOT_ON_CPU)
                self._found(DroppedGraph(ones[0].origin, len(ones), saved_bytes, nodes, effect))

    def _weigh(self, followed: _Followed, nodes: Sequence[Any], args: tuple[Any, ...]) -> None:
        saved: Storages = {}
        given: Storages = {}
        budget = NodeBudget(self._chains, MOST_NODES)
        for node in nodes:
            graph = walk(node, budget)
            saved |= graph.saved
            followed.nodes = max(followed.nodes, graph.nodes)
        for one in args:
            if self._kinds.owns_memory(type(one)):
                storages.add(given, one)
        followed.saved_bytes = sum(
            size for storage, size in saved.items() if storage not in self._known and storage not in given
        )


def _where_walks_end(nodes: Sequence[Any], since_number: int) -> list[Any] | None:
    """The nodes from which nothing leads on but to parameters; None where there are too many, or where the graph goes on in
    what was there before ``since_number``. 0.8 µs a node."""
    ends: list[Any] = []
    seen: set[Any] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        if node._sequence_nr() < since_number or len(seen) >= MOST_NODES or len(ends) >= MOST_MARKS:
            return None
        seen.add(node)
        inner = [child for child, _ in node.next_functions if child is not None and child._sequence_nr() != NO_NUMBER]
        if not inner:
            ends.append(node)
        stack += inner
    return ends


def _autograd_is_compiled() -> bool:
    """Then marks would be compiled too."""
    compiled = getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False)
    return bool(compiled or getattr(sys.modules.get("torch._dynamo.config"), "compiled_autograd", False))
