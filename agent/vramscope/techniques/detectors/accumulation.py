"""Gradient accumulation: the number of micro-steps whose gradients are added up before the optimizer steps."""

from __future__ import annotations

from typing import Final

from vramscope.techniques.observation import Detection, TrainingState, setting_text, technique

KIND: Final = "gradient_accumulation"


def find(training: TrainingState) -> Detection | None:
    name, value = training.setting("gradient_accumulation_steps", "accumulate_grad_batches")
    wanted = value if isinstance(value, int) and value > 1 else None
    # A schedule is a string.
    declared = setting_text(name, value) if wanted is not None or isinstance(value, str) else None
    count = observed_micro_steps(training)
    if count is None:
        chip = f"accumulation {wanted}" if wanted else "accumulation"
        return Detection(technique(KIND, chip, declared, None, micro_steps=wanted)) if declared else None
    if count < 2 and wanted is None:
        return None
    observed = f"{count} micro-steps per step" if count > 1 else ""
    message = technique(KIND, f"accumulation {count if count > 1 else wanted}", declared, observed, micro_steps=count)
    calls = training.model_calls
    # The last step of an epoch may have fewer passes, but it is not observed. More passes may be several losses of one
    # batch.
    if wanted is None or not training.is_sure or count >= wanted or (calls is not None and calls.takes_turns):
        return Detection(message)
    if count > 1:
        text = f"{declared}, but a step accumulates {count} micro-steps: it uses {count} batches instead of {wanted}."
        advice = f"check that an epoch has {wanted} batches, and that the loop does not step by its own count"
        return Detection(message, training.finding("accumulation-differs", text, advice))
    text = (
        f"{declared}, but each observed step had one backward pass. Gradients of {wanted} batches are not accumulated."
    )
    advice = f"step the optimizer once per {wanted} batches, as `with accelerator.accumulate(model):` does"
    return Detection(message, training.finding("accumulation-not-seen", text, advice))


def observed_micro_steps(training: TrainingState) -> int | None:
    """Micro-steps per step. None if unknown: no model calls were observed, or several optimizers take turns."""
    observation = training.model_calls
    if (
        observation is None or not observation.micro_steps
    ):  # 0 means gradients without a backward pass, for example by torch.func
        return None
    if observation.takes_turns:
        # The discriminator of a GAN has its own backward passes in the step. Only batches count then.
        return min(observation.micro_steps, observation.batches) if observation.batches else None
    if any(_repeats_closure(optimizer) for optimizer in training.optimizers):
        return None
    return observation.micro_steps


def _repeats_closure(optimizer: object) -> bool:
    """Whether the optimizer calls its closure many times per step, as LBFGS does. These calls are no micro-steps."""
    return any(kind.__name__ == "LBFGS" for kind in type(optimizer).__mro__)
