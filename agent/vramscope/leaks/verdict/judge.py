"""Judges what a look has seen: which holders are leaks, of which kind, and what would help.

Rounds are what a thing's age is counted in: optimizer steps, and in an evaluation its batches. A holder is judged by what it
holds and by how that changed from look to look; what may be innocent (a graph that gradient accumulation still needs, a
buffer that is bounded) stays silent until it has proved to be none.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.holders.key import HolderKey
from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict import advice
from vramscope.leaks.verdict.classify import Case, Kind
from vramscope.leaks.verdict.deduplicate import without_doubles
from vramscope.leaks.verdict.evaluation import Gathered
from vramscope.leaks.verdict.history import (
    Remembered,
    began,
    bytes_a_round,
    bytes_a_step,
    has_settled,
    has_shrunk,
    was_plain_and_is_dead,
    was_renewed,
)
from vramscope.leaks.verdict.periodic import Begun, Fill
from vramscope.leaks.verdict.scan_context import Moment, rounds_since
from vramscope.leaks.verdict.verdict import GROWS, OVERLAPS, FindingKey, Verdict


class Judge:
    """Remembers holders from look to look."""

    def __init__(self, rounds: Callable[[], int]) -> None:
        """``rounds``: that have ended so far."""
        self._rounds = rounds
        self._fills: dict[HolderKey, Fill] = {}
        """of the containers that were found to take more and more"""
        self.gathered = Gathered()
        self._begun: dict[HolderKey, Begun] = {}
        """of the values that each step carries on with their graph"""
        self._live_bytes = 0
        self._seen: dict[HolderKey, list[Remembered]] = {}
        self._plain: set[int] = set()
        self._heights: dict[HolderKey, int] = {}
        """tensors that a holder had when it was seen to have been emptied: only above that it grows again"""
        self._accused: dict[HolderKey, tuple[str, bool]] = {}
        """kind, and whether one value grows a graph from step to step, of those that were found to take more and more"""
        self.settled: set[HolderKey] = set()
        """keys of the holders that, as of the last look, take no more or have been emptied"""

    def judge(self, groups: Sequence[Group], live_bytes: int, moment: Moment, rounds: int) -> list[Verdict]:
        """The leaks of this look, the largest first.

        live_bytes   of all tensors
        rounds       rounds so far in all, to measure growth
        """
        material, self._live_bytes = material_bytes(live_bytes), live_bytes
        self.settled.clear()
        if moment.evaluated:
            verdicts = [*self._of_evaluation(groups, moment)]
        else:
            verdicts = [*self._of_rounds(groups, moment, rounds, material)]
            self.settled -= self.gathered.told
        owners = collections.Counter(storage for group in groups for storage in {**group.saved, **group.own})
        for verdict in verdicts:
            held = {**verdict.group.saved, **verdict.group.own}
            alone = sum(size for storage, size in held.items() if owners[storage] == 1)
            verdict.exclusive_bytes = int(alone * verdict.group.held_bytes / max(1, sum(held.values())))
            if verdict.group.also_in:
                verdict.exclusive_bytes = 0
        return without_doubles(self._without_parts(verdicts, groups), material)

    def _without_parts(self, verdicts: list[Verdict], groups: Sequence[Group]) -> list[Verdict]:
        """The newest element of a list that grows is the list's, though a variable has it too; what a window has too does not go
        with the variable."""
        windows = {group.holder.key for group in groups if group.holder.container and group.holder.bound is not None}
        for verdict in verdicts:
            if verdict.kind in GROWS:
                verdict.speaks_for = frozenset(
                    FindingKey(kind, group.holder.key)
                    for group in groups
                    if verdict.group.holder.key in group.also_in
                    for kind in OVERLAPS
                )
        return [
            verdict
            for verdict in verdicts
            if verdict.kind not in OVERLAPS or verdict.group.also_in.isdisjoint(windows | self._accused.keys())
        ]

    def _of_rounds(self, groups: Sequence[Group], moment: Moment, rounds: int, material: int) -> Iterator[Verdict]:
        # The batch that a checkpoint saved is there anyway: what others hold without a graph (features, detached, for the next
        # step) is nobody's overlap.
        self._plain = {storage for group in groups if not group.graphs and group.holder.named for storage in group.own}
        for group in groups:
            verdict = self._of(group, moment, rounds, material)
            if verdict is not None:
                yield verdict
        if moment.whole:
            self._let_go(groups, rounds)

    def _of_evaluation(self, groups: Sequence[Group], moment: Moment) -> Iterator[Verdict]:
        in_steps = {*self._fills, *self._heights}
        in_steps.update(
            key for key, scans in self._seen.items() if any(one.tensors < two.tensors for one, two in pairwise(scans))
        )
        for group in self.gathered.seen(groups, self._considerable_bytes, self._live_bytes, in_steps):
            words, freed = advice.of("tensor-growth", group, moment.retained, chain=False, per="batch")
            yield Verdict(
                "tensor-growth",
                group,
                group.tensors,
                None,
                0.0,
                words,
                freed,
                per="batch",
                emptied_after=moment.evaluated,
            )

    @property
    def _considerable_bytes(self) -> int:
        return max(POLICY.considerable_bytes, int(POLICY.considerable_share * self._live_bytes))

    def _let_go(self, groups: Sequence[Group], rounds: int) -> None:
        """Of holders that are not among the groups: those whose tensors are gone too, and not only called otherwise now."""
        seen_now = {group.holder.key for group in groups}
        for key, before in self._seen.items():
            if key in seen_now:
                continue
            fill = self._fills.get(key)
            if fill is not None and fill.note_emptying():
                before.clear()
            if fill is not None and fill.after is not None:
                if fill.is_over(rounds):
                    self.settled.add(key)
            elif before and was_plain_and_is_dead(before[-1]):
                self._empty(key, before)

    def _empty(self, key: HolderKey, before: list[Remembered]) -> None:
        self._heights[key] = max(self._heights.get(key, 0), *(seen.tensors for seen in before))
        before.clear()
        self.settled.add(key)
        self._accused.pop(key, None)

    def waits_for_an_end(self, *, evaluating: bool = False) -> bool:
        """Something may be emptied at the end of the epoch, or of the evaluation, and was hardly seen as full as it gets."""
        return any(fill.wants_look(evaluating=evaluating) for fill in self._fills.values())

    def next_whole(self, rounds: int) -> int | None:
        """The next round in which such a thing will hold the most; None: not known."""
        ahead = (fill.next_whole(rounds) for fill in self._fills.values())
        return min((one for one in ahead if one is not None), default=None)

    @property
    def emptied(self) -> dict[HolderKey, int]:
        """Key of a holder that was seen to be emptied -> rounds that it fills for."""
        return {key: fill.after for key, fill in self._fills.items() if fill.after is not None}

    def _of(self, group: Group, moment: Moment, rounds: int, material: int) -> Verdict | None:
        key = group.holder.key
        before = self._seen.setdefault(key, [])
        now = self._remembered(group, moment, rounds, material, before)
        fill = self._fills.get(key)
        if fill is not None and fill.note_emptying():
            before.clear()
        elif before and now.tensors <= POLICY.emptied_share * before[-1].tensors and was_plain_and_is_dead(before[-1]):
            self._empty(key, before)
        # (A look in an evaluation counts its batches as rounds too, which are no steps of the training.)
        growth = bytes_a_step(before, now) if moment.per == "step" and now.step else bytes_a_round(before, now)
        kind = Case(group, moment, before, now, material, self._plain, self._heights.get(key, 0)).kind()
        more = bool(before) and now.held_bytes > before[-1].held_bytes
        before.append(now)
        del before[: -POLICY.remembered_scans]
        if fill is not None:
            fill.watch(_living(group))
        single = not group.graphs and not (group.holder.container and now.tensors >= POLICY.container_tensors)
        if fill is not None and fill.after is not None:
            kind = Kind(fill.kind, group.graphs or group.tensors)
        elif has_settled(before) or (single and has_shrunk(before)):
            self.settled.add(key)
            self._accused.pop(key, None)
        elif kind is None and more and key in self._accused:
            # Slower than before, and still more: its figures are to be of now.
            name, chain = self._accused[key]
            kind = Kind(name, now.reach if chain else group.graphs or group.tensors, chain)
        return None if kind is None else self._told(kind, group, moment, growth)

    def _remembered(
        self, group: Group, moment: Moment, rounds: int, material: int, before: Sequence[Remembered]
    ) -> Remembered:
        """What is to be remembered of a holder as it is now."""
        reach = rounds_since(group.oldest, moment.boundaries) if group.graphs else 0
        if group.cut_short and before and 0 < reach < (further := before[-1].reach + rounds - before[-1].round):
            ages = {rounds_since(birth, moment.boundaries) for birth in group.births}
            # One value, of which each step's is computed from the one before: it goes on behind what was walked.
            if len(ages) == 1:
                group.lengthen(further / reach)
                reach = further
        newest = rounds_since(group.births[-1], moment.boundaries) if group.births else len(moment.boundaries)
        is_new = newest <= 1 or (not moment.ages_are_sure and was_renewed(before))
        return Remembered(
            moment.step,
            rounds,
            group.tensors,
            group.graphs,
            group.held_bytes,
            reach,
            overlaps=moment.fresh and group.graphs > 0 and is_new and group.bytes_beside(self._plain) >= material,
            after=moment.after,
            nodes=group.nodes,
            tensors_then=group.references,
            given_elements=moment.given_elements,
        )

    def _told(self, kind: Kind, group: Group, moment: Moment, growth: float | None) -> Verdict:
        """The verdict on what leaks so, with what is known of its being emptied."""
        holder, scans = group.holder, self._seen[group.holder.key]
        now = scans[-1]
        if kind.name in GROWS:
            self._accused[holder.key] = kind.name, kind.chain
        words, freed = advice.of(kind.name, group, moment.retained, chain=kind.chain, per=moment.per)
        age = max(now.reach, 1) if group.graphs else None
        if kind.name == "growing-eval" and moment.evaluating:
            growth = group.held_bytes / (kind.count if kind.chain else _batches(group, kind.count, moment.boundaries))
        found = Verdict(kind.name, group, kind.count, age, growth, words, freed, per=moment.per)
        if kind.name in GROWS and holder.container and not kind.chain:
            fill = self._fills.get(holder.key)
            if fill is None:
                fill = self._fills[holder.key] = Fill(kind.name, began(scans), self._rounds)
                fill.watch(_living(group))
            fill.whole_looks += moment.ends_epoch or now.round == fill.next_whole(now.round - 1)
            found.waits = not moment.evaluating and self._waits(holder, fill, now, moment)
            found.emptied_after = fill.after
        elif kind.chain and moment.per == "step":
            begun = self._begun.setdefault(holder.key, Begun())
            if not group.cut_short:
                begun.note(max(0, now.step - now.reach))
            found.emptied_after = begun.after
        return found

    def _waits(self, holder: Holder, fill: Fill, now: Remembered, moment: Moment) -> bool:
        """Whether what the code empties may be emptied yet, and does not hold so much that it must be told before."""
        return (
            holder.emptied_at is not None
            and now.held_bytes < self._considerable_bytes
            and fill.may_be_emptied_yet(now.round, moment.epoch_ended)
        )


def _living(group: Group) -> Iterator[Any]:
    return (thing for reference in group.references if (thing := reference()) is not None)


def material_bytes(live_bytes: int) -> int:
    """What is less than this is not worth a word, unless it grows."""
    return max(POLICY.material_bytes, int(POLICY.material_share * live_bytes))


def _batches(group: Group, count: int, boundaries: Sequence[int]) -> float:
    """Of an evaluation, in which so many graphs were added (between two evaluations lie the training's steps): each takes one, if
    it is not made in many calls of the model, as an image is."""
    births = group.births
    span = rounds_since(births[0], boundaries) - rounds_since(births[-1], boundaries)
    if count < 2 or span < count or births[0] < boundaries[0]:
        return count
    return span * count / (count - 1)
