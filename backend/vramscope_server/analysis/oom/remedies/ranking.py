"""Collects the remedies of an error and sorts them, the best first.

A remedy is called enough only if a replay, a finished run, or a calculation with its maximum error proves it. None means "may be
enough". Remedies that are enough come first, sorted by effort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.diagnosis import Diagnosis
from vramscope.protocol.oom_record import OomRecord
from vramscope_server.analysis.oom.remedies import alternatives, batch, defragment, optimizer_state, remove_cause
from vramscope_server.analysis.oom.remedies.remedy import WORTH_SHARE, OtherRun, Remedy, RemedyContext, ReplayFn

MODULES: Final = (remove_cause, defragment, alternatives, batch, optimizer_state)


def remedies(
    diagnosis: Diagnosis,
    record: OomRecord,
    *,
    replay: ReplayFn = lambda confs: [],
    others: Sequence[OtherRun] = (),
) -> list[Remedy]:
    """Return all remedies, sorted. ``replay`` is called only if the free blocks may have been enough."""
    facts, estimate = diagnosis.facts, diagnosis.estimate
    available = facts.available_bytes
    if available is None or facts.shortfall_bytes is None or estimate is None or facts.asked_bytes is None:
        return []
    context = RemedyContext(facts, record, estimate, diagnosis.kind, replay, others)
    found = [_checked(remedy, context) for module in MODULES for remedy in module.remedies_for(context)]
    found = [remedy for remedy in found if _is_worth_a_line(remedy, available)]
    order = {True: 0, None: 1, False: 2}
    return sorted(found, key=lambda remedy: (order[remedy.enough], remedy.rank, -(remedy.saves_bytes or 0)))


def _is_worth_a_line(remedy: Remedy, available_bytes: int) -> bool:
    if remedy.enough or (remedy.enough is None and remedy.saves_bytes is None):
        return True
    return (remedy.saves_bytes or 0) >= WORTH_SHARE * available_bytes


def _checked(remedy: Remedy, context: RemedyContext) -> Remedy:
    """Correct the field ``enough`` of a remedy.

    A remedy that saves less than the shortfall is not enough. A remedy that does not remove the cause is not certainly enough:
    with less needed memory a leak only takes longer, and fragmentation remains.
    """
    if remedy.technique == "allocator" or remedy.run_id is not None:
        return remedy
    if remedy.saves_bytes is not None and remedy.saves_bytes < context.shortfall_bytes:
        return replace(remedy, enough=False)
    is_leak = context.kind is CauseKind.LEAK and remedy.source != "measured"
    uncured = context.kind is CauseKind.FRAGMENTATION or is_leak
    return replace(remedy, enough=None) if uncured and remedy.enough else remedy
