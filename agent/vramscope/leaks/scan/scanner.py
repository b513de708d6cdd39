"""One look after the other: each explains what is held, and knows from those before what it need not trace again."""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from vramscope.leaks.autograd.graph_walk import Chains
from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.scan.explanation import Traced, explain, trace, undisturbed
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.scan.time_budget import Allowance, Costs

LOOK_SECONDS: Final = 0.225
"""the promise is 0.25: what was begun in time ends a little later, most so where the machine is slow"""
MOST_SECONDS: Final = 3.0
"""that looks on suspicion may take in all, and a hundredth of the run's time beside"""
AGAIN_SECONDS: Final = 1.0
"""beside these, to look again while growth stands: nobody is to be accused for want of time"""


@dataclasses.dataclass
class Looked:
    """What a look saw."""

    groups: list[Group]
    known: Storages
    tensors: int
    optimizers: int
    """that live"""
    left_out: list[str]
    named_since: set[HolderKey]
    """of holders that earlier looks did not find: those whose tensors all have a name by now, or are gone"""
    seconds: float


class _Boring(NamedTuple):
    """A tensor that was traced once."""

    reference: weakref.ref[Any]
    key: HolderKey | None
    """of its holder; None: not known"""


class Scanner:
    """One a session; all on the training thread. It keeps no tensor.

    seconds   that a look may take; what it left out is said
    """

    def __init__(self, kinds: TensorKinds, seconds: float = LOOK_SECONDS) -> None:
        self._kinds = kinds
        self._seconds = seconds
        self._costs = Costs()
        self._boring: dict[int, _Boring] = {}
        self.chains = Chains()
        self._began = time.monotonic()
        self._spent_seconds = 0.0
        self.live_bytes = 0
        """of all tensors, at the last look"""

    def scan(
        self,
        step_numbers: int,
        steps_no_more: Callable[[Any], bool],
        differentiable: tuple[str, int, str] | None,
    ) -> Looked:
        """``step_numbers``: of autograd's, that a step takes at most; the others as for :func:`explain`."""
        self.chains.step_numbers = step_numbers
        with undisturbed():
            allowed = Allowance(self._seconds, self._costs)
            sight = explain(self._kinds, allowed, self._is_boring, self.chains, steps_no_more, differentiable)
            traced = trace(sight, allowed, self.chains, self._of_earlier_looks)
            before = self._not_found()
            self._bore(sight.nameless, traced, whole=sight.is_whole)
            taken = allowed.taken  # (a collection that the training's own objects are due to comes afterwards)
        self.live_bytes = sight.live_bytes
        if not traced.complete:
            sight.left_out.append(f"who holds some of {len(sight.nameless):,} tensors that no variable leads to")
        self._spent_seconds += taken
        return Looked(
            [*sight.groups, *traced.groups],
            sight.known,
            sight.tensors,
            sight.optimizers,
            sight.left_out,
            before - self._not_found(),
            taken,
        )

    def may_spend(self, more: float = 0.0) -> bool:
        """Whether there is time for a look that is not due anyway; ``more``: seconds in all, that may be spent on such ones."""
        return self._spent_seconds < MOST_SECONDS + more + 0.01 * (time.monotonic() - self._began)

    def _bore(self, nameless: list[weakref.ref[Any]], traced: Traced, *, whole: bool) -> None:
        """What was traced, has no graph and is no cycle need not be traced again: a dataset that only its loader knows, say.

        Who holds it is remembered: should the same holder take more, all of it counts. Where too many were there to trace each,
        those of one shape are taken to be alike. Where the search for variables was not ``whole``, the others may have some yet.
        Within the look's :func:`undisturbed`.
        """
        if not any(group.cyclic for group in traced.groups):
            leaves = [
                (thing, reference) for reference in nameless if (thing := reference()) is not None and thing.is_leaf
            ]
            alike = {thing.shape: traced.keys[id(thing)] for thing, _ in leaves if id(thing) in traced.keys}
            self._boring.update(
                (id(thing), _Boring(reference, traced.keys.get(id(thing)) or alike.get(thing.shape)))
                for thing, reference in leaves
                if whole or id(thing) in traced.keys
            )
            # What an earlier look had no time to name has the holder that others of its shape turn out to have.
            self._boring.update(
                (at, known._replace(key=alike[thing.shape]))
                for at, known in self._boring.items()
                if (known.key is None or known.key.kind is HolderKind.UNKNOWN)
                and (thing := known.reference()) is not None
                and thing.shape in alike
                and alike[thing.shape].kind is not HolderKind.UNKNOWN
            )
            leaves.clear()
        self._boring = {key: known for key, known in self._boring.items() if known.reference() is not None}

    def _not_found(self) -> set[HolderKey]:
        return {
            known.key
            for known in self._boring.values()
            if known.key is not None and known.key.kind is HolderKind.UNKNOWN
        }

    def _is_boring(self, tensor: Any) -> bool:
        known = self._boring.get(id(tensor))
        return known is not None and known.reference() is tensor

    def _of_earlier_looks(self, key: HolderKey) -> list[Any]:
        """Tensors that looks before this one have found with this holder, and that live."""
        return [
            thing for known in self._boring.values() if known.key == key and (thing := known.reference()) is not None
        ]
