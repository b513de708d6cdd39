"""Memory of models and optimizers in use that nothing uses any more, and the groups that it forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from vramscope.leaks.autograd.graph_walk import NodeBudget
from vramscope.leaks.holders.grouping import Grouping, group_key, held_links
from vramscope.leaks.holders.holder import holder_of
from vramscope.leaks.holders.holder_bytes import HeldMemory, group_of
from vramscope.leaks.holders.key import HolderKey, Mechanism
from vramscope.leaks.holders.source_line import place_of
from vramscope.leaks.holders.user_code import Codes
from vramscope.leaks.scan.grouped_tensors import without
from vramscope.leaks.scan.idle_optimizers import IdleOptimizers
from vramscope.leaks.scan.paths import FoundPaths, Path
from vramscope.leaks.scan.storages import Storages
from vramscope.leaks.scan.tensors import LiveTensors, parameters_of_optimizers, with_gradients
from vramscope.leaks.scan.untrained_entries import UntrainedEntries


class Unused(NamedTuple):
    """Refers to the user's objects: drop it after the scan."""

    owner: Any
    """Container of a model, or an optimizer."""
    tensors: list[Any]
    """Parameters of the container's entries, or the optimizer's state."""
    is_optimizer: bool


class UnusedMemory:
    """One per session, from scan to scan. It keeps no tensor and no module."""

    def __init__(self) -> None:
        self.iteration = 0
        """Iteration of the scan that runs."""
        self._entries = UntrainedEntries()
        self._optimizers = IdleOptimizers()

    def find(self, live: LiveTensors) -> list[Unused]:
        """What the sweep of this scan shows."""
        entries = self._entries.find(live.modules, live.trained)
        optimizers = self._optimizers.find(live.retired, live.trained, self.iteration)
        return [Unused(*one, False) for one in entries] + [Unused(*one, True) for one in optimizers]

    def close(self) -> None:
        """The session ends."""
        self._entries.close()


def without_optimizer(unused: Iterable[Unused], optimizers: Iterable[Any]) -> list[Unused]:
    """Leave out entries that one of these optimizers can train: each task may have its own, and they take turns."""
    trained = set(map(id, parameters_of_optimizers(optimizers)))
    left = [
        one if one.is_optimizer else one._replace(tensors=[each for each in one.tensors if id(each) not in trained])
        for one in unused
    ]
    return [one for one in left if one.tensors]


def groups_of_unused(
    unused: Sequence[Unused],
    found: FoundPaths,
    codes: Codes,
    grouping: Grouping,
    known: Storages,
    budget: NodeBudget,
) -> list[HeldMemory]:
    """Return what each holder retains of it, as far as a variable leads there.

    Of an entry only the gradients count. Its parameters may be used where no call is seen: in a compiled function, or directly.
    """
    named: dict[tuple[bool, HolderKey], tuple[list[Path], list[Any]]] = {}
    for one in unused:
        path = found.paths.get(id(one.owner))
        if path is None:
            continue
        retained = one.tensors
        if not one.is_optimizer:
            path = Path(path, path.root, "[*]", type(retained[0]), None, None, path.depth + 1)
            retained = [parameter.grad for parameter in retained]
        paths, tensors = named.setdefault((one.is_optimizer, group_key(path, grouping)), ([], []))
        paths.append(path)
        tensors += retained
    groups = []
    for (is_optimizer, _), (paths, tensors) in named.items():
        if is_optimizer:
            holder = holder_of(paths, codes, grouping)._replace(mechanism=Mechanism.IDLE_OPTIMIZER)
            code, line = place_of(held_links(paths[0], grouping), codes, container=False, keys=frozenset())
            if code is not None and line is not None:  # where the variable is set: a list takes no more
                holder = holder._replace(file=code.co_filename, line=line, function=code.co_name)
        else:  # ``written``: the line that puts something into it
            holder = holder_of(paths, codes, grouping, written=True)
            holder = holder._replace(container=True, written=False, mechanism=Mechanism.UNTRAINED_ENTRIES)
        holder = holder._replace(key=holder.key._replace(path=(*holder.key.path, holder.mechanism.name)))
        groups.append(group_of(holder, tensors, without(known, with_gradients(tensors)), budget))
        groups[-1].is_idle = is_optimizer
    return groups
