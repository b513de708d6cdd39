"""Gradient accumulation: how many micro-steps add up their gradients before the optimizer takes a step."""

from __future__ import annotations

from typing import Final

from vramscope.techniques.observation import Facts, Found, said, technique

KIND: Final = "gradient_accumulation"


def find(facts: Facts) -> Found | None:
    name, value = facts.setting("gradient_accumulation_steps", "accumulate_grad_batches")
    wanted = value if isinstance(value, int) and value > 1 else None
    declared = (
        said(name, value) if wanted is not None or isinstance(value, str) else None
    )  # a schedule is told in words
    seen = seen_micro_steps(facts)
    if seen is None:
        chip = f"accumulation {wanted}" if wanted else "accumulation"
        return Found(technique(KIND, chip, declared, None, micro_steps=wanted)) if declared else None
    if seen < 2 and wanted is None:
        return None
    observed = f"{seen} micro-steps in a step" if seen > 1 else ""
    told = technique(KIND, f"accumulation {seen if seen > 1 else wanted}", declared, observed, micro_steps=seen)
    # (An epoch's last step may have fewer: it is not among the observed ones. More may be several losses of one batch.)
    if wanted is None or not facts.is_sure or seen >= wanted or (facts.counted is not None and facts.counted.turns):
        return Found(told)
    if seen > 1:
        text = (
            f"{declared}, and a step adds up the gradients of {seen} micro-steps: it learns from {seen} batches instead of "
            f"{wanted}."
        )
        advice = f"look whether an epoch has {wanted} batches at all, and whether the loop steps by a count of its own"
        return Found(told, facts.finding("accumulation-differs", text, advice))
    text = f"{declared}, and each observed step had one backward pass only: gradients of {wanted} batches are not added up."
    advice = "step the optimizer once in so many batches, as `with accelerator.accumulate(model):` does"
    return Found(told, facts.finding("accumulation-not-seen", text, advice))


def seen_micro_steps(facts: Facts) -> int | None:
    """None where that is not known: no model was heard, or several optimizers take turns."""
    heard = facts.counted
    if heard is None or not heard.micro_steps:  # (0: gradients came without a backward, of torch.func say)
        return None
    if heard.turns:
        # A GAN's discriminator has its own backward passes in the step: only batches tell then.
        return min(heard.micro_steps, heard.batches) if heard.batches else None
    if any(_evaluates_often(optimizer) for optimizer in facts.optimizers):
        return None
    return heard.micro_steps


def _evaluates_often(optimizer: object) -> bool:
    """LBFGS calls its closure many times a step: these are no micro-steps."""
    return any(kind.__name__ == "LBFGS" for kind in type(optimizer).__mro__)
