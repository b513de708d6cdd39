"""Which kind of leak a holder is at one look, or none: by what it holds, how old that is, and how it changed since earlier ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.holders.key import HolderKind
from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.history import Remembered, lengthens, rises
from vramscope.leaks.verdict.scan_context import Moment, rounds_since


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What a holder leaks."""

    name: str
    """of series.LEAK_KINDS"""
    count: int
    """of graphs or tensors; of a chain, the rounds that it reaches back"""
    chain: bool = False
    """one value grows a graph from step to step"""


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One holder at one look, and what it was at the looks before."""

    group: Group
    moment: Moment
    before: list[Remembered]
    now: Remembered
    material: int
    """bytes: less is not worth a word, unless it grows"""
    plain: Collection[int]
    """storages that named holders have without a graph"""
    height: int
    """tensors that it had when it was seen to have been emptied: only above that it grows again"""

    def kind(self) -> Kind | None:
        """None: it leaks nothing, as far as is known by now."""
        group = self.group
        if group.cyclic:
            # Where no collector comes by, what is there once may be in use: it counts when it becomes more and more.
            stays = group.holder.key.kind is HolderKind.CREATE_GRAPH
            leaks = group.held_bytes >= self.material and (not stays or self._takes_more())
            return Kind("cycle", group.tensors) if leaks else None
        if group.graphs:
            return self._of_graphs()
        return Kind("tensor-growth", group.tensors) if self._grows_plainly() else None

    def _of_graphs(self) -> Kind | None:
        group, moment, now = self.group, self.moment, self.now
        ages = [rounds_since(birth, moment.boundaries) for birth in group.births]
        many = group.graphs >= POLICY.many_graphs and len(set(ages)) >= POLICY.many_graphs
        chain = not many and self._is_carried_on(ages)
        if (many or chain) and not _keeps_few(group) and (self._more_graphs(ages) if many else self._reaches_further()):
            unwalked = moment.evaluating or group.oldest > moment.last_walk
            return Kind("growing-eval" if unwalked else "growing", group.graphs if many else now.reach, chain)
        if moment.evaluating:
            return Kind("no_grad-missing", group.graphs) if group.saved_bytes >= self.material else None
        if group.graphs >= POLICY.many_graphs and len(set(ages)) < POLICY.many_graphs and self._takes_more():
            # Made on another thread, whose sequence numbers are its own: the number of graphs tells.
            return Kind("growing", group.graphs)
        return self._overlap() if now.overlaps else None

    def _is_carried_on(self, ages: list[int]) -> bool:
        """Whether each step's graph leads on from the step's before."""
        group, moment, now = self.group, self.moment, self.now
        # (That some of an earlier step is alive says nothing by itself: somebody else may keep it, or each step's graph leads to
        # one that was built once, as to the copies of weights that an autocast around the whole loop makes in its first step.)
        longer = group.cut_short or any(seen.round < now.round and seen.nodes < now.nodes for seen in self.before[-1:])
        old = moment.kept_rounds >= POLICY.chain_iterations or moment.old_graphs >= POLICY.old_graphs_of_unsure_age
        kept = longer and (moment.ages_are_sure or old)
        # (Some is carried on every few steps only: an average of what a lazy penalty measures.)
        return (
            kept
            and _is_of_one_age(ages, len(moment.optimizers))
            and now.reach >= POLICY.chain_iterations * max(1, *ages)
        )

    def _more_graphs(self, ages: list[int]) -> bool:
        """Whether graphs of more and more rounds are held."""
        moment, now = self.moment, self.now
        if len(set(ages)) >= POLICY.collection_ages and moment.kept_rounds >= POLICY.certain_iterations:
            return True
        least = POLICY.evaluation_growth_iterations if moment.evaluating else POLICY.graph_growth_iterations
        # (as old as what is held, or younger)
        scans = [seen for seen in self.before if seen.round >= now.round - now.reach]
        return rises(
            [*scans, now],
            lambda seen: seen.tensors,
            least,
            POLICY.evaluation_growth_scans if moment.evaluating else POLICY.graph_growth_scans,
        )

    def _reaches_further(self) -> bool:
        """Whether one graph reaches back through more and more rounds."""
        now = self.now
        if now.reach >= POLICY.certain_iterations:
            return True
        return any(
            seen.reach >= POLICY.chain_start_iterations
            and seen.round <= now.round - POLICY.graph_growth_iterations // 2
            and now.reach >= max(POLICY.chain_growth_iterations, seen.reach + (now.round - seen.round) - 1)
            for seen in self.before
        )

    def _overlap(self) -> Kind | None:
        """Seen at each boundary of the cycle of optimizers: what one of them still needs is no overlap."""
        group, now, before = self.group, self.now, self.before
        again = [seen for seen in before if seen.overlaps and seen.step < now.step and seen.after == now.after]
        others = self.moment.optimizers | {now.after}
        if not (again and _at_every_optimizer(now, before, others) and _is_least(now, before, others)):
            return None
        unfreed = sum(
            size
            for key, size in group.saved.items()
            if key not in group.own and key not in self.plain and key not in group.leaves
        )
        return Kind("overlap-unfreed" if unfreed >= self.material else "overlap", group.graphs)

    def _grows_plainly(self) -> bool:
        """A container that takes more and more, or one tensor that a loop makes longer and longer."""
        holder, now = self.group.holder, self.now
        if holder.bound is not None or now.held_bytes < self.material:
            return False
        if holder.container and now.tensors >= POLICY.container_tensors:
            return self._takes_more()
        return holder.carried and lengthens(
            [*self.before, now], _patience(holder, self.moment.per), POLICY.tensor_growth_scans
        )

    def _takes_more(self) -> bool:
        holder, now = self.group.holder, self.now
        rounds = _patience(holder, self.moment.per) * (POLICY.drained_patience if holder.taken_from else 1)
        steady = rises([*self.before, now], lambda seen: seen.tensors, rounds, POLICY.tensor_growth_scans)
        return steady and now.tensors > self.height and holder.container and holder.bound is None


def _is_of_one_age(ages: list[int], optimizers: int) -> bool:
    """True where all graphs have about the same age. Of the last and the best result one is old; in a chain all are new."""
    return bool(ages) and max(ages) - min(ages) <= max(1, optimizers)


def _at_every_optimizer(now: Remembered, before: list[Remembered], optimizers: frozenset[int]) -> bool:
    """True where the holder overlapped after the step of each optimizer."""
    return all(any(seen.overlaps for seen in [*before, now] if seen.after == one) for one in optimizers)


def _is_least(now: Remembered, before: list[Remembered], optimizers: frozenset[int]) -> bool:
    """True where no other optimizer's scan saw fewer bytes: between two optimizers more may be retained, for the second."""
    elsewhere = {seen.after: seen.held_bytes for seen in before if seen.after in optimizers - {now.after}}
    return all(now.held_bytes <= held for held in elsewhere.values())


def _patience(holder: Holder, per: str) -> int:
    """Rounds in which plain tensors must have become more and more."""
    if per != "call":
        return POLICY.tensor_growth_iterations
    return POLICY.model_cache_calls if holder.in_model else POLICY.call_patience * POLICY.tensor_growth_iterations


def _keeps_few(group: Group) -> bool:
    """Graphs behind a bound that is near: a window of some steps. (Replay buffers of any length hold what has no graph.)"""
    return group.holder.bound is not None and group.holder.bound <= POLICY.bounded_graphs
