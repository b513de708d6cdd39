"""Scanner: runs one scan after the other, and remembers what earlier scans traced."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from vramscope.guard import guarded
from vramscope.leaks.autograd.graph_walk import Chains
from vramscope.leaks.holders.holder_bytes import HeldMemory, references_to_node
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.policy import material_bytes
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.find_holders import Traced, find_holders, trace, undisturbed
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.scan.tensors import native_owners_count
from vramscope.leaks.scan.time_budget import Costs, TimeBudget
from vramscope.leaks.scan.unused_memory import UnusedMemory
from vramscope.process.tensor_reads import TensorReads

SCAN_SECONDS: Final = 0.225
"""Seconds of a scan. The promise is 0.25: what was begun in time ends a little later, most so on a slow machine."""
MOST_WEIGHED: Final = 1_000
"""Maximum number of tensors without a holder whose bytes are summed up. With more, small ones leave the scan incomplete too."""


@dataclasses.dataclass
class ScanResult:
    """What one scan saw."""

    groups: list[HeldMemory]
    known: Storages
    tensors: int
    optimizers: int
    """Number of live optimizers."""
    not_scanned: list[str]
    named_since: set[HolderKey]
    """Unknown holders of earlier scans whose tensors all have a named holder by now, or are dead."""
    seconds: float


class _TracedTensor(NamedTuple):
    """Tensor that was traced once."""

    reference: weakref.ref[Any]
    key: HolderKey | None
    """Key of its holder; None if unknown."""


@guarded("the references of PyTorch")
def _learn_references() -> None:
    """Learn how this PyTorch counts references to tensors and nodes, which takes a tensor each."""
    native_owners_count()
    references_to_node()


class Scanner:
    """One per session, on the training thread. It keeps no tensor.

    seconds   of a scan; what it leaves out is reported
    """

    def __init__(self, kinds: TensorKinds, seconds: float = SCAN_SECONDS, reads: TensorReads | None = None) -> None:
        self._kinds = kinds
        self._seconds = seconds
        self._reads = reads or TensorReads()
        self._costs = Costs()
        self._traced: dict[int, _TracedTensor] = {}
        self._unused = UnusedMemory()
        self.chains = Chains()
        self.live_bytes = 0
        """Bytes of all tensors at the last scan."""
        # In a thread of its own: on this one a profiler or a mode of the user would see the tensors that are made.
        learning = threading.Thread(target=_learn_references, name="vramscope-references", daemon=True)
        learning.start()
        learning.join()

    def scan(
        self,
        step_numbers: int,
        is_retired: Callable[[Any], bool],
        create_graph_at: tuple[str, int, str] | None,
        iteration: int = 0,
    ) -> ScanResult | None:
        """Search all tensors. Returns None where another thread trains, or begins to during the search.

        ``step_numbers``: most sequence numbers of autograd that a step takes; the others as for :func:`find_holders`.
        """
        self.chains.step_numbers = step_numbers
        self._unused.iteration = iteration
        self._reads.look_for_others()
        with self._reads as may_read, undisturbed():
            if not may_read:
                return None
            time = TimeBudget(self._seconds, self._costs, self._reads)
            explanation = find_holders(
                self._kinds, time, self._was_traced, self.chains, is_retired, create_graph_at, self._unused
            )
            traced = trace(explanation, time, self.chains, self._of_earlier_scans)
            self.live_bytes = explanation.live_bytes
            left_out = 0 if traced.complete else self._considerable(explanation.nameless)
            before = self._unknown()
            self._remember(explanation.nameless, traced, whole=explanation.is_whole)
            taken = time.taken  # a collection that the training's own objects cause comes afterwards
        if self._reads.others_train:
            return None
        if left_out:
            explanation.not_scanned.append(
                f"holders of some of the {left_out:,} tensors that no variable refers to"
                if left_out > 1
                else "the holder of a tensor that no variable refers to"
            )
        return ScanResult(
            [*explanation.groups, *traced.groups],
            explanation.known,
            explanation.tensors,
            explanation.optimizers,
            explanation.not_scanned,
            before - self._unknown(),
            taken,
        )

    def close(self) -> None:
        """The session ends."""
        self._unused.close()

    def _considerable(self, nameless: list[weakref.ref[Any]]) -> int:
        """Number of these tensors; 0 if they have no graph and together too few bytes to be reported."""
        if len(nameless) > MOST_WEIGHED:
            return len(nameless)
        tensors = [tensor for reference in nameless if (tensor := reference()) is not None]
        sizes: Storages = {}
        for tensor in tensors:
            if tensor.grad_fn is not None:
                return len(tensors)
            storages.add(sizes, tensor)
        return len(tensors) if sum(sizes.values()) >= material_bytes(self.live_bytes) else 0

    def _remember(self, nameless: list[weakref.ref[Any]], traced: Traced, *, whole: bool) -> None:
        """Remember traced tensors without a graph that are in no cycle, such as a dataset that only its loader refers to.

        They are not traced again, but count with their holder: if it takes more, all of it counts. Where there were too many to
        trace each, those of one shape count as alike. Where the search for variables was not ``whole``, the others may yet have
        one. Call it within the scan's :func:`undisturbed`.
        """
        if not any(group.cyclic for group in traced.groups):
            leaves = [
                (tensor, reference) for reference in nameless if (tensor := reference()) is not None and tensor.is_leaf
            ]
            alike = {tensor.shape: traced.keys[id(tensor)] for tensor, _ in leaves if id(tensor) in traced.keys}
            self._traced.update(
                (id(tensor), _TracedTensor(reference, traced.keys.get(id(tensor)) or alike.get(tensor.shape)))
                for tensor, reference in leaves
                if whole or id(tensor) in traced.keys
            )
            # A tensor that an earlier scan had no time for has the holder that others of its shape turn out to have.
            self._traced.update(
                (at, known._replace(key=alike[tensor.shape]))
                for at, known in self._traced.items()
                if (known.key is None or known.key.kind is HolderKind.UNKNOWN)
                and (tensor := known.reference()) is not None
                and tensor.shape in alike
                and alike[tensor.shape].kind is not HolderKind.UNKNOWN
            )
            leaves.clear()
        self._traced = {key: known for key, known in self._traced.items() if known.reference() is not None}

    def _unknown(self) -> set[HolderKey]:
        return {
            known.key
            for known in self._traced.values()
            if known.key is not None and known.key.kind is HolderKind.UNKNOWN
        }

    def _was_traced(self, tensor: Any) -> bool:
        known = self._traced.get(id(tensor))
        return known is not None and known.reference() is tensor

    def _of_earlier_scans(self, key: HolderKey) -> list[Any]:
        """Live tensors that earlier scans found with this holder."""
        return [
            tensor for known in self._traced.values() if known.key == key and (tensor := known.reference()) is not None
        ]
