"""Several names often hold one graph: which of them are told."""

from __future__ import annotations

from typing import Final

from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.verdict import Verdict

_ORDER: Final = {
    "growing": 0,
    "growing-eval": 0,
    "tensor-growth": 1,
    "cycle": 1,
    "no_grad-missing": 2,
    "overlap-unfreed": 2,
    "overlap": 3,
}


def without_doubles(verdicts: list[Verdict], material: int) -> list[Verdict]:
    """Several names often hold one graph (loss, logits, features): the one to change speaks for all of them."""
    kept: list[Verdict] = []
    chains: set[int] = set()
    claimed: set[int] = set()
    carried: set[int] = set()
    """storages of graphs that somebody carries from step to step"""
    for verdict in sorted(verdicts, key=_rank):
        group = verdict.group
        fresh = sum(size for key, size in {**group.saved, **group.own}.items() if key not in claimed)
        if verdict.kind in ("growing", "growing-eval"):
            is_chain = group.graphs < POLICY.many_graphs
            if is_chain and not group.holder.carried and not carried.isdisjoint(group.saved):
                continue  # made anew each step, of what is carried: its graph is long because that one's is
            if group.holder.carried:
                carried.update(group.saved)
            if is_chain and group.oldest in chains and not (group.holder.carried and fresh >= material):
                continue
            if is_chain:
                chains.add(group.oldest)
            elif claimed and group.held_bytes >= material and fresh < POLICY.duplicate_share * material:
                continue
        elif fresh < material:
            continue
        claimed.update(group.saved, group.own)
        kept.append(verdict)
    return kept


def _rank(verdict: Verdict) -> tuple[int, bool, bool, int]:
    group = verdict.group
    is_list = group.graphs >= POLICY.many_graphs
    return (_ORDER[verdict.kind], not is_list, not group.holder.carried, -group.held_bytes)
