"""Who holds what has grown, or the step before, where memory ran out before the leak detector's own looks could be sure.

Its patience (several looks, over eight steps and more) is for runs that go on. Here the growth is known from the steps
themselves; what is missing is the name. So one look is taken, and a container that holds as much as has grown is named.
In a training's first steps it is the result of the step before that may be held while the next forward runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from vramscope.leaks.holders.holder_bytes import MOST_WORDS
from vramscope.leaks.scan.explanation import explain, trace, undisturbed
from vramscope.leaks.scan.scanner import LOOK_SECONDS
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import Allowance
from vramscope.leaks.verdict import advice
from vramscope.leaks.verdict.judge import material_bytes
from vramscope.protocol import messages

TRACE_SECONDS: Final = 0.1
FEWEST: Final = 3
"""tensors in a container that takes more with each step"""
LEAST_SHARE, MOST_SHARE = 0.7, 1.7
"""of what has grown, that a container must hold to be named: of few steps, the first and the last weigh much"""
MOST: Final = 4
_CONTAINER: Final = re.compile(r"^\w+\[(\d+)\]$")
"""a link of a chain: ``dict[6]``"""


def holders_of(growth_bytes: int, step: int) -> list[messages.Leak]:
    """What may have grown by so much, the likeliest first; nothing of it is kept.

    Up to 0.4 s of the thread that ran out.
    """
    found = []
    with undisturbed():
        sight = explain(TensorKinds(), Allowance(LOOK_SECONDS))
        traced = trace(sight, Allowance(TRACE_SECONDS))
        for group in (*sight.groups, *traced.groups):
            holder = group.holder
            many = holder.container and group.tensors >= FEWEST  # (one with a bound has not come to it)
            known = holder.name != "unknown"
            if (
                group.on_cpu
                or not known
                or not fits(group.held_bytes, growth_bytes)
                or not (many or group.cyclic)
                or _is_cache(holder.chain)
            ):
                continue
            kind = "cycle" if group.cyclic else "growing" if group.graphs >= FEWEST else "tensor-growth"
            words, freed = advice.of(kind, group, None)
            if holder.bound is not None:
                bound = f"{holder.name} has a bound of {holder.bound:,}, which is more than fits"
                words = f"{bound}: fewer elements, or off the device (.cpu())"
            found.append(
                group.as_leak(
                    kind,
                    count=group.tensors,
                    first_step=step,
                    last_step=step,
                    exclusive_bytes=group.held_bytes,
                    growth_bytes_per_step=growth_bytes / max(1, step - 1),
                    peak_effect_bytes=freed,
                    peak_effect="seen when memory ran out",
                    advice=words[:MOST_WORDS],
                )
            )
    return sorted(found, key=lambda leak: abs(leak.held_bytes - growth_bytes))[:MOST]


def fits(held_bytes: int, growth_bytes: int) -> bool:
    """Whether it can be what has grown."""
    return LEAST_SHARE * growth_bytes <= held_bytes <= MOST_SHARE * growth_bytes


def held_over(boundary: int, retained: tuple[str, int, str] | None, step: int) -> list[messages.Leak]:
    """The variable that keeps most of earlier steps' graphs and results, while a forward of the next runs; at most one.

    boundary   autograd's sequence number when the last step ended
    retained   file, line and function of the last backward(retain_graph=True)
    """
    with undisturbed():
        sight = explain(TensorKinds(), Allowance(LOOK_SECONDS))
        kept = [
            group
            for group in sight.groups
            if group.births
            and group.births[-1] < boundary
            and not group.on_cpu
            and group.holder.variable
            and group.held_bytes >= material_bytes(sight.live_bytes)
        ]
        if not kept:
            return []
        most = max(kept, key=lambda group: group.held_bytes)
        kind = "overlap-unfreed" if most.saved_bytes > most.own_bytes else "overlap"
        words, freed = advice.of(kind, most, retained)
        return [
            most.as_leak(
                kind,
                count=most.graphs,
                first_step=step,
                last_step=step,
                age_steps=1,
                exclusive_bytes=most.held_bytes,
                peak_effect_bytes=freed,
                peak_effect="it was held when memory ran out",
                advice=words[:MOST_WORDS],
            )
        ]


def _is_cache(chain: Iterable[str]) -> bool:
    """A language model's cache of keys: it grows by design, and is needed until the generation ends. Not a container of many."""
    for link in chain:
        if "Cache" in link or "past_key_values" in link:
            return True
        elements = _CONTAINER.search(link)
        if elements and int(elements[1]) >= FEWEST:
            return False
    return False
