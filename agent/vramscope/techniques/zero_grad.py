"""Gradients that stay from step to step, where ``zero_grad`` is told to fill them with zeros: they lie beside the activations."""

from __future__ import annotations

from typing import Final

from vramscope.techniques.facts import Facts, Found, technique

KIND: Final = "zero_grad"


def find(facts: Facts) -> Found | None:
    """None where they are dropped, as PyTorch does since 2.0; nor with models that take turns: one waits with its own."""
    heard = facts.counted
    if heard is None or not heard.keeps_gradients or heard.turns:
        return None
    kept = sum(p.grad.numel() * p.grad.element_size() for p in facts.parameters if p.grad is not None)
    observed = f"gradients of the step before, {kept / 2**20:,.3g} MiB, are still there when backward begins"
    return Found(technique(KIND, "gradients kept", None, observed, gradient_bytes=kept))
