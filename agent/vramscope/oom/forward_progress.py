"""Module that ran at the error, completed share of its forward, and memory of the rest.

The share is estimated from the widths of the modules' outputs. That is crude: an output may be kept for the backward or
freed at once, images change their size from layer to layer, and other memory (temporaries, waiting batches) is not part
of it. Of a model with similar blocks, the graph says more once one of them is done (``forward_projection``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vramscope.guard import guarded
from vramscope.oom.error_stack import module_of
from vramscope.oom.forward_projection import LIKE_THE_OUTPUT, own_and_to_come
from vramscope.oom.layers import leaves_of, widths_of

if TYPE_CHECKING:
    from types import FrameType

    import torch


class RunningModule(NamedTuple):
    """Innermost running module of a known model."""

    name: str
    progress: float | None
    """Completed share of its model's forward, 0 to 1; None: the model's own code ran, at an unknown point."""
    to_come_bytes: int | None = None
    """Bytes that the rest of the forward and its loss would have kept, extrapolated from the graph; None: too little was done."""
    own_bytes: int | None = None
    """Used memory of this forward: what its graph keeps, and its local tensors; None: not known."""


def running_module(
    frames: Sequence[FrameType],
    roots: Iterable[torch.nn.Module],
    *,
    is_stopped: bool = True,
    asked_bytes: int | None = None,
) -> RunningModule | None:
    """Innermost module of a known model whose forward is on the stack; None where there is none.

    frames        of the requesting thread, innermost first
    is_stopped    the thread does not run meanwhile, so that its graph may be walked; about 2 µs a node
    asked_bytes   size of the request
    """
    roots = list(roots)
    for frame in frames:
        module = module_of(frame)
        if module is None:
            continue
        for root in roots:
            for name, child in root.named_modules():
                if child is module:
                    memory = None
                    if is_stopped:
                        with guarded("the projection of the forward"):
                            memory = own_and_to_come(frames, root, name, asked_bytes or 0)
                    own, to_come = memory or (None, None)
                    return RunningModule(name or type(root).__name__, _progress(root, module), to_come, own)
    return None


def _progress(root: torch.nn.Module, module: torch.nn.Module) -> float | None:
    """Completed share of a forward when this module runs: outputs of the root's childless modules up to it, as a share
    of all outputs and the loss, by width.

    A language model's last output is wider than all before it, and a loss over classes makes more of that size: copies
    in 32 bits, their softmax, gradients.
    """
    leaves = list(leaves_of(root))
    inside = set(map(id, leaves_of(module)))
    first = next((position for position, leaf in enumerate(leaves) if id(leaf) in inside), None)
    if first is None or module is root:
        return None
    widths = widths_of(leaves)
    # Which child of a module ran is not known: the first is the safe answer.
    return sum(widths[: first + 1]) / (sum(widths) + LIKE_THE_OUTPUT * widths[-1])
