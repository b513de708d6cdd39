"""Lengths of sequences that are read from the device, where they are not computed. PyTorch refuses lengths of 0."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded
from vramscope.process.patching import Patches

if TYPE_CHECKING:
    import torch


@guarded("the lengths of sequences")
def install(read: Callable[[FrameType | None, int], None]) -> None:
    """Give each CTC loss and each packed sequence lengths that fit its tensors, where its own were on the device.

    read   called with the frame of the program and the bytes of the lengths
    """
    import torch

    def ctc_loss(
        original: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any
    ) -> Any:
        given = input_lengths, target_lengths
        found = _longest(log_probs, targets, *given, read, sys._getframe().f_back) or given
        return original(log_probs, targets, *found, *args, **kwargs)

    def pack(original: Any, x: Any, lengths: Any, batch_first: bool) -> Any:
        found = _of_rows(x, lengths, batch_first, read, sys._getframe().f_back)
        return original(x, lengths if found is None else found, batch_first)

    Patches().wrap(torch, "ctc_loss", ctc_loss)
    Patches().wrap(torch._VF, "_pack_padded_sequence", pack)


@guarded("the longest rows")
def _of_rows(
    x: torch.Tensor,
    lengths: torch.Tensor,
    batch_first: bool,
    read: Callable[[FrameType | None, int], None],
    frame: FrameType | None,
) -> torch.Tensor | None:
    """Return the greatest lengths if all are 0, which only lengths from the device are."""
    import torch

    if not x.is_cuda or torch.any(lengths):
        return None
    read(frame, lengths.nbytes)
    return torch.full_like(lengths, x.shape[int(batch_first)])


@guarded("the longest sequences")
def _longest(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    inputs: Any,
    labels: Any,
    read: Callable[[FrameType | None, int], None],
    frame: FrameType | None,
) -> tuple[Any, Any] | None:
    """Return both lengths: those on the device as long as they can be, and equal if the targets are one row."""
    import torch

    on_device = [one for one in (inputs, labels) if torch.is_tensor(one) and one.is_cuda]
    if not on_device or not log_probs.is_cuda or log_probs.dim() != 3:
        return None
    rows = log_probs.shape[1]
    each, rest = divmod(targets.numel(), rows)
    if any(one is inputs for one in on_device):
        inputs = torch.full((rows,), log_probs.shape[0], dtype=torch.long, device="cpu")
    if any(one is labels for one in on_device):
        labels = torch.tensor([each + (row < rest) for row in range(rows)], dtype=torch.long, device="cpu")
    read(frame, sum(one.nbytes for one in on_device))
    return inputs, labels
