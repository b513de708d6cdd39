"""Decides whether a holder leaks, so that it is reported, and as which kind of leak.

It looks at what the holder retains at one scan, how old that is, and how it changed since earlier scans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final

from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.holders.key import HolderKind, Mechanism
from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.history import Observation, fills_slots, lengthens, rises, was_renewed
from vramscope.leaks.verdict.scan_context import ScanContext, iterations_since
from vramscope.leaks.verdict.states import Reason

MOST_ITEMS_IN_TURN: Final = 64
"""Items that itertools.tee stores although all have read them: it frees blocks of 57."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeakKind:
    """Kind of a leak, and the rule that found it."""

    name: str
    """One of series.LEAK_KINDS."""
    count: int
    """Graphs or tensors; of a chain, the iterations that it reaches back."""
    reason: Reason
    chain: bool = False
    """True where one value's graph gets longer from step to step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Classification:
    """One holder at one scan, with its earlier observations."""

    group: HeldMemory
    context: ScanContext
    before: list[Observation]
    now: Observation
    material_bytes: int
    """Less is not reported unless it grows."""
    plain: Collection[int]
    """Storages that named holders have without a graph."""
    highest_tensors: int
    """Tensors when the holder was emptied. Only above that it grows again."""

    def kind(self) -> LeakKind | None:
        """None where the holder leaks nothing as far as is known."""
        group = self.group
        if group.is_idle:
            leaks = group.held_bytes >= self.material_bytes
            return LeakKind("idle-optimizer", group.tensors, Reason.OPTIMIZER_IS_IDLE) if leaks else None
        if group.cyclic:
            # Without a garbage collector a cycle that exists once may be in use; it counts when it grows.
            stays = group.holder.key.kind is HolderKind.CREATE_GRAPH
            leaks = group.held_bytes >= self.material_bytes and (not stays or self._number_rises())
            return LeakKind("cycle", group.tensors, Reason.REFERENCE_CYCLE) if leaks else None
        if group.graphs:
            return self._of_graphs()
        return self._of_plain_tensors()

    def _of_graphs(self) -> LeakKind | None:
        group, context, now = self.group, self.context, self.now
        ages = [iterations_since(birth, context.boundaries) for birth in group.births]
        many = group.graphs >= POLICY.many_graphs and len(set(ages)) >= POLICY.many_graphs
        chain = not many and self._is_carried_on(ages)
        reason = None
        if not _is_bounded_window(group):
            reason = self._more_graphs(ages) if many else self._reaches_further() if chain else None
        if reason is not None:
            without_backward = context.evaluating or group.oldest > context.last_backward
            kind = "growing-eval" if without_backward else "growing"
            return LeakKind(kind, group.graphs if many else now.reach, reason, chain)
        if context.evaluating:
            if group.saved_bytes < self.material_bytes:
                return None
            return LeakKind("no_grad-missing", group.graphs, Reason.GRAPHS_WITHOUT_BACKWARD)
        few_ages = len(set(ages)) < POLICY.many_graphs
        if group.graphs >= POLICY.many_graphs and few_ages and self._number_rises():
            # Made on another thread, which has sequence numbers of its own: the number of graphs counts.
            return LeakKind("growing", group.graphs, Reason.GRAPHS_INCREASE)
        return self._overlap() if now.overlaps else None

    def _is_carried_on(self, ages: list[int]) -> bool:
        """True where each step's graph continues the graph of the step before."""
        group, context, now = self.group, self.context, self.now
        # A live graph of an earlier step alone proves nothing. Another holder may retain it, or each step's graph leads
        # to one that was built once, as to the copies of weights that an autocast around the whole loop makes in its
        # first step.
        last = self.before[-1:]
        longer = group.goes_on or any(seen.iteration < now.iteration and seen.nodes < now.nodes for seen in last)
        old = (
            context.kept_iterations >= POLICY.chain_iterations or context.old_graphs >= POLICY.old_graphs_of_unsure_age
        )
        kept = longer and (context.ages_are_sure or old)
        # Some values are carried on every few steps only: an average of what a lazy penalty measures.
        one_age = _is_of_one_age(ages, len(context.optimizers))
        return kept and one_age and now.reach >= POLICY.chain_iterations * max(1, *ages)

    def _more_graphs(self, ages: list[int]) -> Reason | None:
        """The rule by which graphs of more and more iterations are retained; None where none applies."""
        context, now = self.context, self.now
        if len(set(ages)) >= POLICY.collection_ages and context.kept_iterations >= POLICY.certain_iterations:
            return Reason.GRAPHS_OF_MANY_AGES
        iterations, least_scans = POLICY.graph_growth_iterations, POLICY.graph_growth_scans
        if context.evaluating:
            iterations, least_scans = POLICY.evaluation_growth_iterations, POLICY.evaluation_growth_scans
        # as old as the retained tensors, or newer
        scans = [seen for seen in self.before if seen.iteration >= now.iteration - now.reach]
        rose = rises([*scans, now], lambda seen: seen.tensors, iterations, least_scans)
        return Reason.GRAPHS_INCREASE if rose else None

    def _reaches_further(self) -> Reason | None:
        """The rule by which one graph reaches back through more and more iterations; None where none applies."""
        now = self.now
        if now.reach >= POLICY.certain_iterations:
            return Reason.GRAPH_SPANS_ITERATIONS
        further = any(
            seen.reach >= POLICY.chain_start_iterations
            and seen.iteration <= now.iteration - POLICY.graph_growth_iterations // 2
            and now.reach >= max(POLICY.chain_growth_iterations, seen.reach + (now.iteration - seen.iteration) - 1)
            for seen in self.before
        )
        return Reason.GRAPH_LENGTHENS if further else None

    def _overlap(self) -> LeakKind | None:
        """Seen at each boundary of the cycle of optimizers: what one of them still needs is no overlap. Where other Python objects
        refer to the graph, to delete the variable would free nothing."""
        group, now, before = self.group, self.now, self.before
        if group.nodes_in_python:
            return None
        again = [seen for seen in before if seen.overlaps and seen.step < now.step and seen.optimizer == now.optimizer]
        others = self.context.optimizers | {now.optimizer}
        if not (again and _at_every_optimizer(now, before, others) and _is_least(now, before, others)):
            return None
        unfreed = sum(
            size
            for key, size in group.saved.items()
            if key not in group.own and key not in self.plain and key not in group.leaves
        )
        kind = "overlap-unfreed" if unfreed >= self.material_bytes else "overlap"
        return LeakKind(kind, group.graphs, Reason.OVERLAPS_EACH_STEP)

    def _of_plain_tensors(self) -> LeakKind | None:
        """A container that takes more and more tensors, or one tensor that a loop makes longer and longer."""
        holder, now = self.group.holder, self.now
        if self._is_bounded() or holder.handed_out or now.held_bytes < self.material_bytes:
            return None
        if holder.container and now.tensors >= POLICY.container_tensors:
            seen = [*self.before, now]
            renewed = holder.made_anew and was_renewed(self.before)  # a batch with more and more elements
            leaks = self._number_rises() and not fills_slots(seen) and not renewed
            reason = Reason.TENSORS_INCREASE
        else:
            patience = _patience(holder, self.context.per)
            leaks = holder.carried and lengthens([*self.before, now], patience, POLICY.tensor_growth_scans)
            reason = Reason.TENSOR_LENGTHENS
        return LeakKind("tensor-growth", self.group.tensors, reason) if leaks else None

    def _number_rises(self) -> bool:
        holder, now = self.group.holder, self.now
        iterations = _patience(holder, self.context.per) * (POLICY.drained_patience if holder.drained else 1)
        scans = POLICY.model_growth_scans if self.group.models else POLICY.tensor_growth_scans
        steady = rises([*self.before, now], lambda seen: seen.tensors, iterations, scans)
        return steady and now.tensors > self.highest_tensors and holder.container and not self._is_bounded()

    def _is_bounded(self) -> bool:
        """True for a buffer with a bound, and while a tee has no more than iterators that read in turn leave there. Nobody means a
        buffer to retain whole models that no longer train."""
        if self.group.holder.mechanism is Mechanism.TEE:
            return self.now.elements <= MOST_ITEMS_IN_TURN
        return self.group.holder.bound is not None and not self.group.models


def _is_of_one_age(ages: list[int], optimizers: int) -> bool:
    """True where all graphs have about the same age. Of the last and the best result one is old; in a chain all are new."""
    return bool(ages) and max(ages) - min(ages) <= max(1, optimizers)


def _at_every_optimizer(now: Observation, before: list[Observation], optimizers: frozenset[int]) -> bool:
    """True where the holder overlapped after the step of each optimizer."""
    return all(any(seen.overlaps for seen in [*before, now] if seen.optimizer == one) for one in optimizers)


def _is_least(now: Observation, before: list[Observation], optimizers: frozenset[int]) -> bool:
    """True where no other optimizer's scan saw fewer bytes: between two optimizers more may be retained, for the second."""
    elsewhere = {seen.optimizer: seen.held_bytes for seen in before if seen.optimizer in optimizers - {now.optimizer}}
    return all(now.held_bytes <= held for held in elsewhere.values())


def _patience(holder: Holder, per: str) -> int:
    """Iterations over which the number of plain tensors must rise."""
    if per != "call":
        return POLICY.tensor_growth_iterations
    return POLICY.model_cache_calls if holder.in_model else POLICY.call_patience * POLICY.tensor_growth_iterations


def _is_bounded_window(group: HeldMemory) -> bool:
    """True where a bound limits the graphs to a window of some steps. (A replay buffer of any length has tensors without one.)"""
    return group.holder.bound is not None and group.holder.bound <= POLICY.bounded_graphs
