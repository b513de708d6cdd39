"""One look after the other: each explains what is held, and knows from those before what it need not trace again."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, Final

from vramscope.graphs.allowance import Costs
from vramscope.graphs.explain import explain, trace, undisturbed
from vramscope.graphs.group import Group
from vramscope.graphs.storages import Storages, TensorKinds
from vramscope.graphs.walk import Chains

LOOK_SECONDS: Final = 0.25
LEAST_TRACE_SECONDS: Final = 0.05


@dataclasses.dataclass
class Looked:
    """What a look saw."""

    groups: list[Group]
    known: Storages
    tensors: int
    optimizers: int
    """that live"""
    left_out: list[str]
    seconds: float


class Looker:
    """One a session; all on the training thread. It keeps no tensor.

    seconds   that a look may take; what it left out is said
    """

    def __init__(self, kinds: TensorKinds, seconds: float = LOOK_SECONDS) -> None:
        import torch

        self._kinds = kinds
        self._seconds = seconds
        self._costs = Costs()
        self._boring: dict[int, weakref.ref[Any]] = {}
        self._plainly = torch._C.DisableTorchFunctionSubclass
        self.chains = Chains()
        self.spent_seconds = 0.0
        """by all looks so far"""
        self.live_bytes = 0
        """of all tensors, at the last look"""

    def look(
        self,
        step_numbers: int,
        steps_no_more: Callable[[Any], bool],
        differentiable: tuple[str, int, str] | None,
    ) -> Looked:
        """``step_numbers``: of autograd's, that a step takes at most; the others as for :func:`explain`."""
        self.chains.step_numbers = step_numbers
        with undisturbed():
            sight = explain(
                self._kinds, self._seconds, self._is_boring, self._costs, self.chains, steps_no_more, differentiable
            )
            rest = max(LEAST_TRACE_SECONDS, self._seconds - sight.seconds)
            traced, complete, seconds = trace(sight, rest, self._costs, self.chains)
        self.spent_seconds += sight.seconds + seconds
        self.live_bytes = sight.live_bytes
        if not complete:
            sight.left_out.append(f"who holds some of {len(sight.nameless):,} tensors that no variable leads to")
        self._bore(sight.nameless, traced)
        return Looked(
            [*sight.groups, *traced],
            sight.known,
            sight.tensors,
            sight.optimizers,
            sight.left_out,
            sight.seconds + seconds,
        )

    def _bore(self, nameless: list[weakref.ref[Any]], traced: list[Group]) -> None:
        """What was traced, has no graph and is no cycle need not be traced again: a dataset that only its loader knows, say."""
        if not any(group.cyclic for group in traced):
            with self._plainly():
                self._boring.update(
                    (id(thing), reference)
                    for reference in nameless
                    if (thing := reference()) is not None and thing.is_leaf
                )
        self._boring = {key: reference for key, reference in self._boring.items() if reference() is not None}

    def _is_boring(self, tensor: Any) -> bool:
        reference = self._boring.get(id(tensor))
        return reference is not None and reference() is tensor
