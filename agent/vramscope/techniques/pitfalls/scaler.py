"""Autocast and a GradScaler that do not go together: float16 wants one, bfloat16 has no use for it.

After PyTorch's page on mixed precision (docs.pytorch.org/docs/stable/amp.html, "Gradient Scaling") and its GradScaler's source.
"""

from __future__ import annotations

from vramscope.protocol import messages
from vramscope.techniques.observation import Facts


def find(facts: Facts) -> messages.Finding | None:
    """A loss that is a product may have been scaled by hand: nothing is said of it."""
    heard = facts.heard
    if heard is None or not facts.is_sure:
        return None
    if heard.learning["float16"] and not heard.scaled and not heard.multiplied:
        return facts.finding(
            "fp16-without-scaler",
            "What is trained runs under autocast to float16, and no GradScaler scales the loss: gradients below some 6e-8 become "
            "zero on their way back, and their part of the update is lost, without an error (PyTorch's notes on gradient scaling).",
            "scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update() with a torch.amp.GradScaler; or autocast to "
            "bfloat16, which needs none",
        )
    narrow = set(heard.autocast) | {str(dtype).removeprefix("torch.") for _, dtype in heard.weights}
    if heard.scaled and "bfloat16" in narrow and "float16" not in narrow:
        return facts.finding(
            "scaler-with-bf16",
            "A GradScaler scales the loss, and nothing runs in float16: bfloat16 reaches as far down as float32, so that nothing "
            "underflows that scaling would save. In each step it goes through every gradient in search of infinities and waits for "
            "the device to know, where the optimizer is not a fused one (torch.amp.GradScaler.step).",
            "leave the GradScaler out, or make it with enabled=False where the dtype is bfloat16",
        )
    return None
