"""A checkpointed function that closes over a loop's variable: by the time of backward it calls the last block for all of them.

Non-reentrant checkpointing then gives wrong gradients without an error, the reentrant one none at all for the earlier blocks.
"""

from __future__ import annotations

from vramscope.protocol import messages
from vramscope.techniques.observation import Facts


def find(facts: Facts) -> messages.Finding | None:
    heard = facts.heard
    rebound = None if heard is None else heard.regions.bindings.rebound
    if rebound is None:
        return None
    times = "one checkpoint" if rebound.regions == 1 else f"{rebound.regions} checkpoints"
    name = rebound.variable
    if rebound.what == "tensor":
        text = (
            f"The function that is checkpointed here takes the tensor '{name}' from the code around it, and in {times} of a step "
            f"'{name}' was another one when backward ran it again. Where its values matter, gradients are wrong, without an error."
        )
        advice = f"hand it over as an argument: checkpoint(function, x, {name}, use_reentrant=False)"
    elif name:
        text = (
            f"The function that is checkpointed here takes '{name}' from the code around it, and in {times} of a step '{name}' was "
            "another one when backward ran it again, so that another module was called: gradients are wrong, without an error."
        )
        advice = (
            f"bind it where the function is made, lambda x, {name}={name}: ..., or pass the module itself: checkpoint(block, x, "
            "use_reentrant=False)"
        )
    else:
        text = (
            f"In {times} of a step the function that is checkpointed here called another module when backward ran it again than in "
            "forward: gradients are wrong, without an error."
        )
        advice = "pass the module itself: checkpoint(block, x, use_reentrant=False)"
    return facts.finding("checkpoint-closure", text, advice, (rebound.file, rebound.line))
