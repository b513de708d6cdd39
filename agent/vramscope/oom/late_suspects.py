"""Late suspects: holders of what has grown, or of the previous step, where memory ran out before the leak detector was certain.

The detector needs several scans over eight steps and more, because a run goes on. Here the growth is known from the
steps themselves, and only the name is missing. So one scan is made, and a container as large as the growth is named. In
the first steps of a training, a variable may retain the result of the previous step while the next forward runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vramscope.leaks.holders.holder_bytes import MOST_WORDS
from vramscope.leaks.policy import material_bytes
from vramscope.leaks.scan.find_holders import find_holders, trace, undisturbed
from vramscope.leaks.scan.scanner import SCAN_SECONDS
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.leaks.verdict import advice
from vramscope.oom.error_stack import is_own
from vramscope.oom.rebound_names import rebound_names
from vramscope.process.frames import running_frames
from vramscope.protocol import messages

if TYPE_CHECKING:
    from types import FrameType

TRACE_SECONDS: Final = 0.1
FEWEST: Final = 3
"""Tensors in a container that grows with each step."""
LEAST_SHARE, MOST_SHARE = 0.7, 1.7
"""Size of a container relative to the growth. Of few steps, the first and the last weigh much."""
MOST: Final = 4


def holders_of(growth_bytes: int, step: int) -> list[messages.Leak]:
    """Holders that may have grown by so much, the likeliest first. Up to 0.4 s of the thread that ran out."""
    found = []
    with undisturbed():
        scan = find_holders(TensorKinds(), TimeBudget(SCAN_SECONDS))
        traced = trace(scan, TimeBudget(TRACE_SECONDS))
        for group in (*scan.groups, *traced.groups):
            holder = group.holder
            many = holder.container and group.tensors >= FEWEST  # a container with a bound has not reached it
            known = holder.name != "unknown"
            if (
                group.on_cpu
                or not known
                or not fits(group.held_bytes, growth_bytes)
                or not (many or group.cyclic)
                or holder.in_one_cache
            ):
                continue
            kind = "cycle" if group.cyclic else "growing" if group.graphs >= FEWEST else "tensor-growth"
            words, freed, _ = advice.advice_for(kind, group, None)
            if holder.bound is not None:
                bound = f"the bound of {holder.name}, {holder.bound:,}, is more than fits"
                words = f"{bound}: keep fewer elements, or move them to the host (.cpu())"
            found.append(
                group.as_leak(
                    kind,
                    count=group.tensors,
                    first_step=step,
                    last_step=step,
                    exclusive_bytes=group.held_bytes,
                    growth_bytes_per_step=growth_bytes / max(1, step - 1),
                    peak_effect_bytes=freed,
                    peak_effect="found when memory ran out",
                    advice=words[:MOST_WORDS],
                )
            )
    return sorted(found, key=lambda leak: abs(leak.held_bytes - growth_bytes))[:MOST]


def fits(held_bytes: int, growth_bytes: int) -> bool:
    """Whether it can be the growth."""
    return LEAST_SHARE * growth_bytes <= held_bytes <= MOST_SHARE * growth_bytes


def retained_from_last_step(boundary: int, retain_graph: tuple[str, int, str] | None, step: int) -> list[messages.Leak]:
    """The variable that retains most of earlier steps' graphs and results while the next forward runs; at most one.

    boundary       autograd's sequence number when the last step ended
    retain_graph   file, line and function of the last backward(retain_graph=True)
    """
    with undisturbed():
        scan = find_holders(TensorKinds(), TimeBudget(SCAN_SECONDS))
        kept = [
            group
            for group in scan.groups
            if group.births
            and group.births[-1] < boundary
            and not group.on_cpu
            and group.holder.variable
            and group.held_bytes >= material_bytes(scan.live_bytes)
        ]
        if not kept:
            return []
        most = max(kept, key=lambda group: group.held_bytes)
        kind = "overlap-unfreed" if most.saved_bytes > most.own_bytes else "overlap"
        words, freed, _ = advice.advice_for(kind, most, retain_graph)
        return [
            most.as_leak(
                kind,
                count=most.graphs,
                first_step=step,
                last_step=step,
                age_steps=1,
                exclusive_bytes=most.held_bytes,
                peak_effect_bytes=freed,
                peak_effect="retained when memory ran out",
                advice=words[:MOST_WORDS],
            )
        ]


def retained_by_skipped_forward(frames: Iterable[FrameType], step: int) -> list[messages.Leak]:
    """The variable that keeps a graph, while the statement runs that assigns it again; at most one.

    The loss of a batch that was skipped, say. Only what nothing else retains counts: the graphs of two views of a batch are needed.

    frames   of the requesting thread
    """
    rebound = _rebound_by_function(frames)
    if not any(rebound.values()):
        return []
    with undisturbed():
        scan = find_holders(TensorKinds(), TimeBudget(SCAN_SECONDS))
        others: Counter[int] = Counter()
        for group in scan.groups:
            others.update({*group.own, *group.saved})
        for group in scan.groups:
            holder = group.holder
            names = rebound.get((holder.file, holder.function), frozenset())
            if not holder.variable or group.on_cpu or not group.graphs or holder.name not in names:
                continue
            kept = {**group.own, **group.saved}
            alone = sum(size for key, size in kept.items() if others[key] == 1)
            if group.saved_bytes <= group.own_bytes or alone < material_bytes(scan.live_bytes):
                continue
            return [
                group.as_leak(
                    "overlap-unfreed",
                    count=group.graphs,
                    first_step=step,
                    last_step=step,
                    age_steps=1,
                    exclusive_bytes=alone,
                    peak_effect_bytes=alone,
                    peak_effect="retained when memory ran out",
                    advice=f"{holder.name} keeps the graph of an earlier forward: `del {holder.name}` before the next one",
                )
            ]
    return []


def _rebound_by_function(frames: Iterable[FrameType]) -> dict[tuple[str | None, str | None], frozenset[str]]:
    """Names that the running statements of the user's functions assign again, by file and function.

    Of a function with several calls (a recursion, threads) only those that each call assigns: the others are still needed.
    """
    codes = {frame.f_code for frame in frames if is_own(frame.f_code.co_filename)}
    rebound: dict[tuple[str | None, str | None], frozenset[str]] = {}
    for frame in running_frames():
        code = frame.f_code
        if code in codes:
            names, place = rebound_names(frame), (code.co_filename, code.co_name)
            rebound[place] = rebound.get(place, names) & names
    return rebound
