"""What is true of a training loop: which leak it has and who holds it, or why it looks like one and is none.

The labels are what somebody says who has read the loop and knows PyTorch. ``test_truths.py`` weighs each of them with
a meter of its own; the detector has no part in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from vramscope.protocol import series

Loop = Callable[[str], Any]
"""A training as a user writes it; its argument is the device, ``"cpu"`` or ``"cuda"``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truth:
    """One loop's label. Bytes are those of tensors, each storage once, without parameters, gradients, optimizer state."""

    kinds: tuple[str, ...] = ()
    """Kinds of ``series.LEAK_KINDS``, each of which is right. Empty: the loop has no leak."""
    holders: tuple[str, ...] = ()
    """Names of which the finding must have one."""
    held_bytes: int | None = None
    """Bytes retained at the start of each step, always the same."""
    bytes_each: int | tuple[int, ...] | None = None
    """Or bytes of one more item, which is added after ``every`` steps. A tuple has one entry a tensor."""
    every: int = 1
    """Optimizer steps for one more item. In a loop without an optimizer: calls of the model."""
    epoch: int = 0
    """Number of steps after which the container is emptied, repeatedly. 0: never."""
    nodes: bool = False
    """Whether the host memory of autograd nodes grows more than the tensors."""
    advice: str = ""
    """Words that the fix must contain. Empty: any fix is right."""
    also: tuple[str, ...] = ()
    """Further findings that are right in this loop, each ``"kind name"``."""
    why: str = ""
    """Why a loop without a leak looks like one, and why it is none."""
    settles_bytes: int = 0
    """Bytes by which the memory after a step may rise in a loop without a leak."""
    frameworks: bool = False
    """Whether the loop needs transformers, lightning or torchmetrics."""

    @property
    def innocent(self) -> bool:
        return not self.kinds

    def expected_bytes(self, steps: int, rounding_bytes: int = 1) -> int | None:
        """Return the bytes that the holder retains after this number of steps; None where the label does not say.

        rounding_bytes   a tensor takes a multiple of that: 512 on a CUDA device
        """
        if self.bytes_each is None:
            return self.held_bytes
        return self.item_bytes(rounding_bytes) * self.items(steps)

    def items(self, steps: int) -> int:
        """Return how many there are after this number of steps."""
        return (steps % self.epoch if self.epoch else steps) // self.every

    def item_bytes(self, rounding_bytes: int = 1) -> int:
        """Of one item; 0 where nothing grows."""
        tensors = self.bytes_each if isinstance(self.bytes_each, tuple) else (self.bytes_each or 0,)
        return sum(-(-tensor // rounding_bytes) * rounding_bytes for tensor in tensors)


def leaks(kind: str | tuple[str, ...], holder: str | tuple[str, ...], **rest: Any) -> Callable[[Loop], Loop]:
    """The loop leaks; see :class:`Truth` for the keywords. Raises ValueError for a kind that the wire does not know."""
    kinds = (kind,) if isinstance(kind, str) else kind
    holders = (holder,) if isinstance(holder, str) else holder
    for name in (*kinds, *(finding.split()[0] for finding in rest.get("also", ()))):
        if name not in series.LEAK_KINDS:
            raise ValueError(f"kind {name!r} is none of {', '.join(series.LEAK_KINDS)}")
    return _labelled(Truth(kinds=kinds, holders=holders, **rest))


def innocent(why: str, **rest: Any) -> Callable[[Loop], Loop]:
    """The loop has no leak, though it may look so."""
    return _labelled(Truth(why=why, **rest))


def _labelled(truth: Truth) -> Callable[[Loop], Loop]:
    def label(loop: Loop) -> Loop:
        loop.truth = truth  # type: ignore[attr-defined]
        return loop

    return label
