"""Which module ran when memory ran out, how far the forward was, and what was still to come of it.

By the widths of its modules' outputs it is told how far, which is crude: an output may be kept for the backward or be let go of at
once, pictures get smaller or larger from layer to layer, and what is there besides (temporaries, batches that wait) is no part of
it. Of a model whose blocks are alike the graph says more once one of them is over (``to_come.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vramscope.guard import guarded
from vramscope.oom.forward_projection import LIKE_THE_OUTPUT, own_and_to_come
from vramscope.oom.layers import leaves_of, widths_of
from vramscope.oom.stack import module_of

if TYPE_CHECKING:
    from types import FrameType

    import torch


class Running(NamedTuple):
    """The module that ran."""

    name: str
    progress: float | None
    """how far its model was, 0 to 1; None: where in the model's own code it was nobody knows"""
    to_come_bytes: int | None = None
    """that the rest of the forward and its loss would have kept, drawn out from what its graph keeps; None: too little was over"""
    own_bytes: int | None = None
    """what of the memory in use is this forward's: what its graph keeps, and what is at hand in it; None: not known"""


def running(
    frames: Sequence[FrameType], roots: Iterable[torch.nn.Module], *, waits: bool = True, asked_bytes: int | None = None
) -> Running | None:
    """The innermost module of a known model whose forward is on the stack; None where there is none.

    frames        of the thread that asked, innermost first
    waits         it stands still meanwhile: its graph may be walked, some 2 µs a node
    asked_bytes   what it asked for
    """
    roots = list(roots)
    for frame in frames:
        module = module_of(frame)
        if module is None:
            continue
        for root in roots:
            for name, child in root.named_modules():
                if child is module:
                    told = None
                    if waits:
                        with guarded("what was to come of the forward"):
                            told = own_and_to_come(frames, root, name, asked_bytes or 0)
                    own, to_come = told or (None, None)
                    return Running(name or type(root).__name__, _progress(root, module), to_come, own)
    return None


def _progress(root: torch.nn.Module, module: torch.nn.Module) -> float | None:
    """How far a forward is when this module runs: what the root's childless modules up to it give back, as a share of all of them
    and of the loss, each by the width of its output.

    Of a language model the last module's output is wider than all before it, and a loss of several classes makes more of that
    size: copies in 32 bits, their softmax, gradients.
    """
    leaves = list(leaves_of(root))
    inside = set(map(id, leaves_of(module)))
    first = next((place for place, leaf in enumerate(leaves) if id(leaf) in inside), None)
    if first is None or module is root:
        return None
    widths = widths_of(leaves)
    # Of a module with children it is not known which of them ran: the first is the safe answer.
    return sum(widths[: first + 1]) / (sum(widths) + LIKE_THE_OUTPUT * widths[-1])
