"""What follows from a scan: the context in which its holders are judged, and the findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramscope.leaks.graph_ages import GraphAges
from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.holders.key import HolderKey
from vramscope.leaks.loop_shape import LoopShape
from vramscope.leaks.registry import FindingRegistry
from vramscope.leaks.schedule import EvaluationSchedule, ScanSchedule
from vramscope.leaks.verdict.holder_verdict import OF_EVALUATIONS
from vramscope.leaks.verdict.judge import Judge
from vramscope.leaks.verdict.scan_context import ScanContext

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock


def conclude(
    judge: Judge,
    registry: FindingRegistry,
    groups: Sequence[HeldMemory],
    live_bytes: int,
    context: ScanContext,
    iteration: int,
) -> dict[HolderKey, list[int]]:
    """Judge the groups of a scan and bring the findings up to date.

    Returns the numbers of the newest operations of graphs that were reported as an evaluation's, by holder.
    """
    if not context.evaluated_batches:
        registry.begin_scan()
    of_evaluation = {}
    for verdict in judge.judge(groups, live_bytes, context, iteration):
        registry.add(verdict)
        if verdict.kind in OF_EVALUATIONS and context.evaluating:
            of_evaluation[verdict.group.holder.key] = verdict.group.births
    for verdict in judge.slowing:
        registry.add(verdict)
    registry.withdraw(judge.settled)
    idle = {group.holder.key for group in groups if group.is_idle}
    registry.keep_idle(lambda key: key in idle or not (context.complete or judge.is_dead(key)))
    registry.note_emptied(judge.emptied)
    return of_evaluation


def scan_context(
    clock: StepClock,
    loop: LoopShape,
    schedule: ScanSchedule,
    evaluation: EvaluationSchedule,
    ages: GraphAges,
    *,
    fresh: bool,
    evaluating: bool,
    complete: bool,
    evaluated_batches: int,
    retain_graph_at: tuple[str, int, str] | None,
) -> ScanContext:
    """State of the loop now."""
    newest = clock.batch.latest
    return ScanContext(
        step=clock.step,
        boundaries=list(evaluation.boundaries if evaluating else ages.boundaries),
        fresh=fresh,
        optimizer=loop.optimizer,
        optimizers=frozenset(loop.optimizers),
        evaluating=evaluating,
        last_backward=loop.last_backward,
        kept_iterations=ages.kept_iterations,
        old_graphs=ages.old_graphs,
        ages_are_sure=loop.ages_are_sure,
        retain_graph_at=retain_graph_at,
        evaluated_batches=evaluated_batches,
        complete=complete,
        per="batch" if evaluating else schedule.per,
        input_elements=math.prod(newest[1]) if newest is not None else 0,
        epoch_ended=loop.epoch_ended,
        ends_epoch=loop.pass_ended if evaluating else loop.epoch_ended == schedule.number,
    )
