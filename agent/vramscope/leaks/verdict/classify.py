"""Which kind of leak a holder is at one look, or none: by what it holds, how old that is, and how it changed since earlier ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final

from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.verdict.history import LEAST_GROWTH_ROUNDS, Remembered, lengthens, rises
from vramscope.leaks.verdict.scan_context import Moment, rounds_since

LEAST_REACH_ROUNDS: Final = 7
"""that one value's graph must reach back through, in two looks"""
CHAIN_ROUNDS: Final = 4
"""that one variable's graph must reach back before it may be called growing"""
MANY_OLD_GRAPHS: Final = 12
"""alive: where a thing's age is not sure, as good as that each of the last rounds' is"""
SURE_ROUNDS: Final = 12
"""in which nothing was let go: growing is then certain at the first look"""
LEAST_TENSOR_GROWTH_ROUNDS: Final = 12
"""the same for plain tensors, in four looks: caches and replay buffers fill up, and stop"""
MOST_GRAPHS: Final = 1_000
"""that a container with a bound may keep by design: no loop backpropagates through so many steps"""
PATIENCE: Final = 2
"""times as many rounds, where the code takes out of the container too"""
PATIENCE_WITH_CALLS: Final = 4
"""and where each call of a model is a round: a text is written, or an image made, in many of them"""
ROUNDS_OF_A_MODEL: Final = 800
"""in which a model itself may take more with each call: its cache of keys and values"""


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
            stays = group.holder.key[0] == "create_graph"
            leaks = group.held_bytes >= self.material and (not stays or self._takes_more())
            return Kind("cycle", group.tensors) if leaks else None
        if group.graphs:
            return self._of_graphs()
        return Kind("tensor-growth", group.tensors) if self._grows_plainly() else None

    def _of_graphs(self) -> Kind | None:
        group, moment, now = self.group, self.moment, self.now
        ages = [rounds_since(birth, moment.boundaries) for birth in group.births]
        many = group.graphs >= 3 and len(set(ages)) >= 3
        chain = not many and self._is_carried_on(ages)
        if (many or chain) and not _keeps_few(group) and (self._more_graphs(ages) if many else self._reaches_further()):
            unwalked = moment.evaluating or group.oldest > moment.last_walk
            return Kind("growing-eval" if unwalked else "growing", group.graphs if many else now.reach, chain)
        if moment.evaluating:
            return Kind("no_grad-missing", group.graphs) if group.saved_bytes >= self.material else None
        if group.graphs >= 3 and len(set(ages)) < 3 and self._takes_more():
            # Made on another thread, whose sequence numbers are its own: the number of graphs tells.
            return Kind("growing", group.graphs)
        return self._overlap() if now.overlaps else None

    def _is_carried_on(self, ages: list[int]) -> bool:
        """Whether each step's graph leads on from the step's before."""
        group, moment, now = self.group, self.moment, self.now
        # (That some of an earlier step is alive says nothing by itself: somebody else may keep it, or each step's graph leads to
        # one that was built once, as to the copies of weights that an autocast around the whole loop makes in its first step.)
        longer = group.cut_short or any(seen.round < now.round and seen.nodes < now.nodes for seen in self.before[-1:])
        old = moment.kept_rounds >= CHAIN_ROUNDS or moment.old_graphs >= MANY_OLD_GRAPHS
        kept = longer and (moment.ages_are_sure or old)
        # (Of the last and the best result one is old; of what is carried on, all was made when the newest was.)
        together = bool(ages) and max(ages) - min(ages) <= max(1, len(moment.optimizers))
        # (Some is carried on every few steps only: an average of what a lazy penalty measures.)
        return kept and together and now.reach >= CHAIN_ROUNDS * max(1, *ages)

    def _more_graphs(self, ages: list[int]) -> bool:
        """Whether graphs of more and more rounds are held."""
        moment, now = self.moment, self.now
        if len(set(ages)) >= 6 and moment.kept_rounds >= SURE_ROUNDS:
            return True
        least = 3 if moment.evaluating else LEAST_GROWTH_ROUNDS
        # (as old as what is held, or younger)
        scans = [seen for seen in self.before if seen.round >= now.round - now.reach]
        return rises([*scans, now], lambda seen: seen.tensors, least, 2 if moment.evaluating else 3)

    def _reaches_further(self) -> bool:
        """Whether one graph reaches back through more and more rounds."""
        now = self.now
        if now.reach >= SURE_ROUNDS:
            return True
        return any(
            seen.reach >= 2
            and seen.round <= now.round - LEAST_GROWTH_ROUNDS // 2
            and now.reach >= max(LEAST_REACH_ROUNDS, seen.reach + (now.round - seen.round) - 1)
            for seen in self.before
        )

    def _overlap(self) -> Kind | None:
        """Seen at each boundary of the cycle of optimizers: what one of them still needs is no overlap."""
        group, now, before = self.group, self.now, self.before
        again = [seen for seen in before if seen.overlaps and seen.step < now.step and seen.after == now.after]
        others = self.moment.optimizers | {now.after}
        everywhere = all(any(seen.overlaps for seen in [*before, now] if seen.after == after) for after in others)
        # Between the steps of two optimizers more may be held, for the second: what is too much is what is left at the end.
        elsewhere = {seen.after: seen.held_bytes for seen in before if seen.after in others - {now.after}}
        least = all(now.held_bytes <= held for held in elsewhere.values())
        if not (again and everywhere and least):
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
        if holder.container and now.tensors >= 3:
            return self._takes_more()
        return holder.carried and lengthens([*self.before, now], _patience(holder, self.moment.per), 4)

    def _takes_more(self) -> bool:
        holder, now = self.group.holder, self.now
        rounds = _patience(holder, self.moment.per) * (PATIENCE if holder.taken_from else 1)
        steady = rises([*self.before, now], lambda seen: seen.tensors, rounds, 4)
        return steady and now.tensors > self.height and holder.container and holder.bound is None


def _patience(holder: Holder, per: str) -> int:
    """Rounds in which plain tensors must have become more and more."""
    if per != "call":
        return LEAST_TENSOR_GROWTH_ROUNDS
    return ROUNDS_OF_A_MODEL if holder.in_model else PATIENCE_WITH_CALLS * LEAST_TENSOR_GROWTH_ROUNDS


def _keeps_few(group: Group) -> bool:
    """Graphs behind a bound that is near: a window of some steps. (Replay buffers of any length hold what has no graph.)"""
    return group.holder.bound is not None and group.holder.bound <= MOST_GRAPHS
