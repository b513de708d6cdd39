"""Deduplication of findings: several variables may retain the same graph; the one to change is reported."""

from __future__ import annotations

from typing import Final

from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.holder_verdict import HolderVerdict

_ORDER: Final = {
    "growing": 0,
    "growing-eval": 0,
    "tensor-growth": 1,
    "cycle": 1,
    "no_grad-missing": 2,
    "overlap-unfreed": 2,
    "overlap": 3,
    "idle-optimizer": 3,
}


def without_duplicates(verdicts: list[HolderVerdict], material_bytes: int) -> list[HolderVerdict]:
    """One verdict for each graph that several names retain (loss, logits, features)."""
    kept: list[HolderVerdict] = []
    chains: set[int] = set()
    claimed: set[int] = set()
    carried: set[int] = set()
    """Storages of graphs that a variable carries from step to step."""
    operations: set[int] = set()
    """Sequence numbers of the operations that made such variables."""
    for verdict in sorted(verdicts, key=_rank):
        group = verdict.group
        added = sum(size for key, size in {**group.saved, **group.own}.items() if key not in claimed)
        if verdict.kind in ("growing", "growing-eval"):
            is_chain = group.graphs < POLICY.many_graphs
            if is_chain and not group.holder.carried:
                if not (carried.isdisjoint(group.saved) and operations.isdisjoint(group.operations)):
                    continue  # made in each step from the carried value: its graph is long because that one's is
            elif group.holder.carried:
                carried.update(group.saved)
                operations.update(group.births)
            if is_chain and group.oldest in chains and not (group.holder.carried and added >= material_bytes):
                continue
            if is_chain:
                chains.add(group.oldest)
            elif claimed and group.held_bytes >= material_bytes and added < POLICY.duplicate_share * material_bytes:
                continue
        elif added < material_bytes:
            continue
        claimed.update(group.saved, group.own)
        kept.append(verdict)
    return kept


def _rank(verdict: HolderVerdict) -> tuple[int, bool, bool, int]:
    group = verdict.group
    is_list = group.graphs >= POLICY.many_graphs
    return (_ORDER[verdict.kind], not is_list, not group.holder.carried, -group.held_bytes)
