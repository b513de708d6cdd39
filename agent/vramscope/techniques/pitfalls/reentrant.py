"""checkpoint() without use_reentrant: which variant runs depends on the version of PyTorch, and the old one has gaps."""

from __future__ import annotations

from vramscope.protocol import messages
from vramscope.techniques.observation import Facts


def find(facts: Facts) -> messages.Finding | None:
    heard = facts.heard
    if heard is None or heard.regions.unset_at is None:
        return None
    return facts.finding(
        "use-reentrant-unset",
        "torch.utils.checkpoint is called without use_reentrant: PyTorch then takes the reentrant variant, which gives no "
        "gradients to a block whose inputs need none, and it has announced to refuse such calls.",
        "pass use_reentrant=False",
        heard.regions.unset_at,
    )
