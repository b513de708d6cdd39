"""Attention by PyTorch's ``scaled_dot_product_attention`` in models of Transformers that compute it eagerly."""

from __future__ import annotations

from typing import Final

from vramscope.dry_run.changes.change import Change
from vramscope.dry_run.changes.trained_modules import before_first_forward, trained_roots, transformers_models

EAGER: Final = "eager"
SDPA: Final = "sdpa"


class ScaledDotProductAttention(Change):
    """Sets the attention implementation ``sdpa``."""

    name = SDPA
    reason = "only models of Transformers have a setting for it"

    def begin(self) -> None:
        """Change the models at their first forward pass."""
        before_first_forward(self._change)

    def _change(self) -> None:
        for model in transformers_models(trained_roots()):
            name = type(model).__name__
            before = model.config._attn_implementation
            if before != EAGER:
                self.reason = f"{name} uses {before}"
                continue
            self.reason = f"{name} has no implementation {SDPA}"
            if model._supports_sdpa:
                model.set_attn_implementation(SDPA)
            if model.config._attn_implementation == SDPA:
                self.applied(name, f'{name}.from_pretrained(..., attn_implementation="{SDPA}")')
