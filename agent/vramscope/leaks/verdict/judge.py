"""Judge of a scan: which holders are leaks, of which kind, and what to do.

A holder is judged by what it retains and by how that changed from scan to scan. What may be harmless (a graph that gradient
accumulation still needs, a bounded buffer) stays unreported until it has proved otherwise.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.holders.key import HolderKey
from vramscope.leaks.policy import POLICY, material_bytes
from vramscope.leaks.verdict import advice
from vramscope.leaks.verdict.deduplicate import without_duplicates
from vramscope.leaks.verdict.evaluation import EvaluationAccumulation, batches_of
from vramscope.leaks.verdict.history import (
    MOST_TRANSITIONS,
    HolderHistory,
    Observation,
    bytes_per_iteration,
    bytes_per_step,
    gains_elements,
    has_settled,
    has_shrunk,
    is_plain_and_dead,
    late_growth,
    start_of_growth,
    was_renewed,
)
from vramscope.leaks.verdict.holder_verdict import GROWS, FindingKey, HolderVerdict
from vramscope.leaks.verdict.leak_kind import Classification, LeakKind
from vramscope.leaks.verdict.may_fill_up import (
    is_no_proof,
    may_be_for_a_training,
    may_have_a_bound,
    replaces_values,
    waits_to_fill,
)
from vramscope.leaks.verdict.periodic import AccumulationCycle, RestartCycle
from vramscope.leaks.verdict.scan_context import ScanContext, iterations_since
from vramscope.leaks.verdict.states import HolderState, Reason, Transition
from vramscope.protocol.series import OVERLAPS


class Judge:
    """Remembers holders from scan to scan."""

    def __init__(self, iteration: Callable[[], int]) -> None:
        """``iteration``: returns the current one."""
        self._iteration = iteration
        self.evaluations = EvaluationAccumulation()
        self.settled: dict[HolderKey, Reason] = {}
        """Holders that, as of the last scan, grow no more or were emptied."""
        self.slowing: list[HolderVerdict] = []
        """Caches that, as of the last scan, take ever fewer entries: no leaks as far as is known."""
        self._histories: dict[HolderKey, HolderHistory] = {}
        self._live_bytes = 0
        self._plain: set[int] = set()
        self._has_material_graph = False

    def judge(
        self, groups: Sequence[HeldMemory], live_bytes: int, context: ScanContext, iteration: int
    ) -> list[HolderVerdict]:
        """Leaks of this scan, the most important first.

        live_bytes   of all tensors
        iteration    number by which growth is measured
        """
        material, self._live_bytes = material_bytes(live_bytes), live_bytes
        self.settled.clear()
        self.slowing.clear()
        if context.evaluated_batches:
            verdicts = [*self._of_evaluation(groups, context)]
        else:
            verdicts = [*self._of_iterations(groups, context, iteration, material)]
            for key in self.evaluations.reported:
                self.settled.pop(key, None)
        _count_exclusive(verdicts, groups)
        reported = without_duplicates(self._without_parts(verdicts, groups), material)
        self._note_states(verdicts, reported, context.step)
        return reported

    def training_begins(self, withdrawn: Set[HolderKey]) -> None:
        """The first step has ended. What grew before and is not reported was no growth of the training."""
        left = [
            (k, one) for k, one in self._histories.items() if one.state is HolderState.REPORTED and k not in withdrawn
        ]
        self._histories = dict(left)

    def _note_states(self, verdicts: list[HolderVerdict], reported: list[HolderVerdict], step: int) -> None:
        """Move each holder to the state that follows from its verdict."""
        for verdict in verdicts:
            history = self._histories[verdict.group.holder.key]
            if not any(one is verdict for one in reported):
                history.suspect(Reason.SAME_AS_ANOTHER, step)
            elif verdict.waits is not None:
                history.move(HolderState.SUSPECTED, verdict.waits, step)
            else:
                history.move(HolderState.REPORTED, verdict.reason, step)
            verdict.why = tuple(history.transitions)

    def _without_parts(self, verdicts: list[HolderVerdict], groups: Sequence[HeldMemory]) -> list[HolderVerdict]:
        """Without variables that have the newest element of a growing list; freeing what a window also has frees nothing."""
        windows = {group.holder.key for group in groups if group.holder.container and group.holder.bound is not None}
        growing = {key for key, history in self._histories.items() if history.growth is not None}
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
            if verdict.kind not in OVERLAPS or verdict.group.also_in.isdisjoint(windows | growing)
        ]

    def _of_iterations(
        self, groups: Sequence[HeldMemory], context: ScanContext, iteration: int, material: int
    ) -> Iterator[HolderVerdict]:
        # The batch that a checkpoint saved exists anyway: what others have without a graph (features, detached, for the next
        # step) is no overlap.
        self._plain = {storage for group in groups if not group.graphs and group.holder.named for storage in group.own}
        self._has_material_graph = any(group.graphs and group.bytes_beside(self._plain) >= material for group in groups)
        for group in groups:
            verdict = self._of(group, context, iteration, material)
            if verdict is not None:
                yield verdict
        if context.complete:
            self._note_gone(groups, iteration, context.step)

    def _of_evaluation(self, groups: Sequence[HeldMemory], context: ScanContext) -> Iterator[HolderVerdict]:
        in_steps = {
            key
            for key, history in self._histories.items()
            if history.accumulation is not None or history.highest_tensors or history.has_grown
        }
        accumulating = self.evaluations.accumulating(groups, self._considerable_bytes, self._live_bytes, in_steps)
        for group in accumulating:
            self._history(group.holder.key, context.step)
            given = advice.advice_for("tensor-growth", group, context.retain_graph_at, chain=False, per="batch")
            yield HolderVerdict(
                "tensor-growth",
                group,
                group.tensors,
                None,
                0.0,
                given,
                per="batch",
                emptied_after=context.evaluated_batches,
                reason=Reason.EVALUATION_ACCUMULATES,
            )

    def _history(self, key: HolderKey, step: int) -> HolderHistory:
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = HolderHistory(step)
        return history

    @property
    def _considerable_bytes(self) -> int:
        return max(POLICY.considerable_bytes, int(POLICY.considerable_share * self._live_bytes))

    def _note_gone(self, groups: Sequence[HeldMemory], iteration: int, step: int) -> None:
        """Holders that are not among the groups: those whose tensors are dead too, and not only named otherwise now."""
        present = {group.holder.key for group in groups}
        for key, history in self._histories.items():
            if key in present:
                continue
            cycle = history.accumulation
            if cycle is not None and cycle.note_emptying():
                history.restart(step)
            if cycle is not None and cycle.after is not None:
                if cycle.is_over(iteration):
                    self.settled[key] = Reason.NOT_FILLED_AGAIN
            elif history.observations and is_plain_and_dead(history.observations[-1]):
                self._empty(key, history, step)

    def _empty(self, key: HolderKey, history: HolderHistory, step: int) -> None:
        history.empty(Reason.TENSORS_DIED, step)
        self.settled[key] = Reason.TENSORS_DIED

    def is_dead(self, key: HolderKey) -> bool:
        """True where most tensors that the newest scan of a holder saw are dead."""
        history = self._histories.get(key)
        return history is not None and bool(history.observations) and is_plain_and_dead(history.observations[-1])

    @property
    def suspects(self) -> bool:
        """True where a holder may yet be reported: a suspected one, or one that retained a graph at the last scan."""
        states = (history.state for history in self._histories.values())
        return self._has_material_graph or HolderState.SUSPECTED in states

    def waits_for_an_end(self, *, evaluating: bool = False) -> bool:
        """True where a container may be emptied at the end of the epoch, or of the evaluation, and few scans saw it when full."""
        return any(cycle.wants_scan(evaluating=evaluating) for cycle in self._cycles())

    def next_full(self, iteration: int) -> int | None:
        """The next iteration in which a periodically emptied container will be full; None if unknown."""
        ahead = (cycle.next_full(iteration) for cycle in self._cycles())
        return min((one for one in ahead if one is not None), default=None)

    def _cycles(self) -> Iterator[AccumulationCycle]:
        return (history.accumulation for history in self._histories.values() if history.accumulation is not None)

    @property
    def emptied(self) -> dict[HolderKey, int]:
        """Iterations of a cycle, of each holder that was seen emptied."""
        return {key: after for key, history in self._histories.items() if (after := history.emptied_after) is not None}

    def _of(self, group: HeldMemory, context: ScanContext, iteration: int, material: int) -> HolderVerdict | None:
        key, step = group.holder.key, context.step
        history = self._history(key, step)
        before = history.observations
        now = self._observed(group, context, iteration, material, before)
        cycle = history.accumulation
        replaced = replaces_values(group.holder, before, now)
        if not replaced and cycle is not None and cycle.note_emptying():
            history.restart(step)
        elif before and now.tensors <= POLICY.emptied_share * before[-1].tensors and is_plain_and_dead(before[-1]):
            self._empty(key, history, step)
        # A scan in an evaluation counts its batches as iterations too. They are not steps of the training.
        growth = bytes_per_step(before, now) if context.per == "step" and now.step else bytes_per_iteration(before, now)
        kind = Classification(group, context, before, now, material, self._plain, history.highest_tensors).kind()
        more = bool(before) and now.held_bytes > before[-1].held_bytes
        history.add(now)
        if cycle is not None:
            cycle.watch(_living(group))
        if not group.is_idle:  # it never grows
            kind = self._settled_kind(kind, group, history, now, more=more, step=step)
        if kind is None:
            if more:
                history.suspect(Reason.MORE_THAN_BEFORE, step)
            elif now.overlaps:
                history.suspect(Reason.OVERLAPS_ONCE, step)
            self._note_slowing(group, context, history)
            return None
        return self._verdict(kind, group, context, growth)

    def _settled_kind(
        self,
        kind: LeakKind | None,
        group: HeldMemory,
        history: HolderHistory,
        now: Observation,
        *,
        more: bool,
        step: int,
    ) -> LeakKind | None:
        """The kind in view of the history: a container that is emptied periodically, one that settled, one that grows slower."""
        key, scans = group.holder.key, history.observations
        count = group.graphs or group.tensors
        single = not group.graphs and not (group.holder.container and now.tensors >= POLICY.container_tensors)
        if history.accumulation is not None and history.accumulation.after is not None:
            return LeakKind(history.accumulation.kind, count, Reason.FILLS_AGAIN)
        if has_settled(scans) or (single and has_shrunk(scans)):
            reason = Reason.GROWTH_STOPPED if has_settled(scans) else Reason.SHRANK
            self.settled[key] = reason
            history.settle(reason, step)
        elif kind is None and more and history.growth is not None:
            # Slower than before, and still more: its figures must be those of now.
            name, chain = history.growth
            return LeakKind(name, now.reach if chain else count, Reason.STILL_MORE, chain)
        return kind

    def _note_slowing(self, group: HeldMemory, context: ScanContext, history: HolderHistory) -> None:
        holder, scans = group.holder, history.observations
        may_fill = holder.keyed and holder.named and holder.bound is None and not (group.graphs or group.models)
        growth = late_growth(scans) if may_fill and group.tensors >= POLICY.container_tensors else None
        if growth is None or scans[-1].held_bytes < material_bytes(self._live_bytes):
            return
        given = advice.advice_for("tensor-growth", group, context.retain_graph_at, chain=False, per=context.per)
        why = (*history.transitions, Transition(HolderState.SUSPECTED, Reason.SLOWS_DOWN, context.step))
        self.slowing.append(
            HolderVerdict(
                "tensor-growth",
                group,
                group.tensors,
                None,
                growth,
                given,
                min(group.held_bytes, sum(group.own.values())),
                context.per,
                waits=Reason.SLOWS_DOWN,
                keys_recur=True,
                why=why[-MOST_TRANSITIONS:],
            )
        )

    def _observed(
        self, group: HeldMemory, context: ScanContext, iteration: int, material: int, before: Sequence[Observation]
    ) -> Observation:
        reach = iterations_since(group.oldest, context.boundaries) if group.graphs else 0
        if group.goes_on and before and 0 < reach < (further := before[-1].reach + iteration - before[-1].iteration):
            ages = {iterations_since(birth, context.boundaries) for birth in group.births}
            # One value, each step's computed from the one before: its graph continues beyond what was walked.
            if len(ages) == 1:
                group.lengthen(further / reach)
                reach = further
        newest = iterations_since(group.births[-1], context.boundaries) if group.births else len(context.boundaries)
        is_new = newest <= 1 or (not context.ages_are_sure and was_renewed(before))
        return Observation(
            context.step,
            iteration,
            group.tensors,
            group.graphs,
            group.held_bytes,
            reach,
            overlaps=context.fresh and group.graphs > 0 and is_new and group.bytes_beside(self._plain) >= material,
            optimizer=context.optimizer,
            nodes=group.nodes,
            references=group.references,
            input_elements=context.input_elements,
            elements=group.holder.size or 0,
        )

    def _verdict(self, kind: LeakKind, group: HeldMemory, context: ScanContext, growth: float | None) -> HolderVerdict:
        """The verdict, with what is known of when the holder is emptied."""
        holder, history = group.holder, self._histories[group.holder.key]
        scans = history.observations
        now = scans[-1]
        if kind.name in GROWS:
            history.growth = kind.name, kind.chain
        given = advice.advice_for(kind.name, group, context.retain_graph_at, chain=kind.chain, per=context.per)
        age = max(now.reach, 1) if group.graphs else None
        if kind.name == "growing-eval" and context.evaluating:
            growth = group.held_bytes / (
                kind.count if kind.chain else batches_of(group, kind.count, context.boundaries)
            )
        is_new = kind.name == "tensor-growth" and history.state is not HolderState.REPORTED
        waits = Reason.MAY_FILL_UP if is_new and may_be_for_a_training(now, context) else None
        found = HolderVerdict(
            kind.name, group, kind.count, age, growth, given, per=context.per, reason=kind.reason, waits=waits
        )
        if kind.name in GROWS and holder.container and not kind.chain:
            cycle = history.accumulation
            if cycle is None:
                cycle = history.accumulation = AccumulationCycle(kind.name, start_of_growth(scans), self._iteration)
                cycle.watch(_living(group))
            cycle.full_scans += context.ends_epoch or now.iteration == cycle.next_full(now.iteration - 1)
            if not context.evaluating and self._waits(holder, cycle, now, context):
                found.waits = Reason.MAY_BE_EMPTIED
            elif (
                is_new
                and may_have_a_bound(group, cycle, scans)
                and (kind.reason is Reason.STILL_MORE or waits_to_fill(holder, cycle.started, now))
            ):
                late = late_growth(scans) if kind.reason is Reason.STILL_MORE else None
                found.waits = Reason.MAY_FILL_UP if late is None else Reason.SLOWS_DOWN
                found.growth = growth if late is None else late
                slower = kind.reason is Reason.STILL_MORE and (holder.keyed or late is not None)
                found.keys_recur = slower or is_no_proof(holder, scans)
                found.at_once = now.tensors / now.elements if holder.keyed and gains_elements(scans) else 0
            found.emptied_after = cycle.after
        elif is_new and (holder.cut or (holder.limited and waits_to_fill(holder, scans[0].iteration, now))):
            found.waits, found.keys_recur = Reason.IS_CUT if holder.cut else Reason.MAY_FILL_UP, holder.cut
        elif kind.chain and context.per == "step":
            restarts = history.restarts
            if restarts is None:
                restarts = history.restarts = RestartCycle()
            if not group.cut_short:
                restarts.note(max(0, now.step - now.reach))
            found.emptied_after = restarts.after
        return found

    def _waits(self, holder: Holder, cycle: AccumulationCycle, now: Observation, context: ScanContext) -> bool:
        """True where code empties the container and may yet do so, unless it already has so much that it must be reported."""
        return (
            holder.emptied_at is not None
            and now.held_bytes < self._considerable_bytes
            and cycle.may_be_emptied_yet(now.iteration, context.epoch_ended)
        )


def _count_exclusive(verdicts: list[HolderVerdict], groups: Sequence[HeldMemory]) -> None:
    """Set the bytes that no other holder of this scan retains."""
    owners = collections.Counter(storage for group in groups for storage in {**group.saved, **group.own})
    for verdict in verdicts:
        storages = {**verdict.group.saved, **verdict.group.own}
        alone = sum(size for storage, size in storages.items() if owners[storage] == 1)
        verdict.exclusive_bytes = int(alone * verdict.group.held_bytes / max(1, sum(storages.values())))
        if verdict.group.also_in:
            verdict.exclusive_bytes = 0


def _living(group: HeldMemory) -> Iterator[Any]:
    return (tensor for reference in group.references if (tensor := reference()) is not None)
