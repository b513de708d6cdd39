"""Fields of a leak's message, made from the detector's verdict."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from vramscope.leaks.autograd.dropped_graphs import GraphOrigin
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.verdict.holder_verdict import FindingKey, HolderVerdict
from vramscope.leaks.verdict.peak_effect import Effect
from vramscope.leaks.verdict.states import Transition
from vramscope.protocol import messages
from vramscope.protocol.series import OVERLAPS

NO_STEPS: Final = "Not measured: an evaluation has no steps. Without the graphs this memory would be free."
OUTLIVES: Final = "It outlives its {per}, so every later peak includes it."
UNTIL_EMPTIED: Final = (
    "It outlives its {per}, so every peak includes it until it is emptied; these are its largest values."
)


def growth_of(verdict: HolderVerdict) -> float | None:
    """Bytes per iteration that are sent."""
    # Batches of varying sizes leave more at one scan than at the one before.
    growth = 0.0 if verdict.kind in (*OVERLAPS, "idle-optimizer") else verdict.growth
    if verdict.kind == "cycle" and growth is not None and growth < 0:
        return None  # a collection fell between the scans
    if verdict.kind in ("growing", "growing-eval"):
        if growth is None:
            growth = verdict.group.held_bytes / (verdict.age or 1)
        if growth < 0:
            return None  # this scan walked less of a long graph than the one before: its growth is unknown
    return growth


def sent(transition: Transition) -> messages.Transition:
    return messages.Transition(state=transition.state.value, reason=transition.reason.value, step=transition.step)


def emptied_periodically(leak: messages.Leak, after: int | None) -> messages.Leak:
    """The same finding where the container is known to be emptied periodically."""
    if after is None:
        return leak
    effect = Effect(leak.peak_effect_bytes, leak.peak_effect)
    if leak.peak_effect == OUTLIVES.format(per=leak.per):
        in_steps = leak.kind != "growing-eval"
        effect = effect._replace(words=UNTIL_EMPTIED.format(per=leak.per)) if in_steps else Effect(None, NO_STEPS)
    return msgspec.structs.replace(
        leak,
        emptied_after=after,
        growth_bytes_per_step=0.0,
        peak_effect_bytes=effect.peak_bytes,
        peak_effect=effect.words,
    )


def place_in_words(place: tuple[str, int, str] | None) -> str:
    if place is None:
        return ""
    file, line, function = place
    at = f"{file.replace(os.sep, '/').rpartition('/')[2]}:{line}"
    return at if function.startswith("<") else f"{function}() ({at})"


def step_graph_key(origin: GraphOrigin) -> FindingKey:
    holder = HolderKey(HolderKind.STEP_GRAPH, origin.module, origin.file, path=(str(origin.line),))
    return FindingKey("no_grad-missing", holder)
