"""Pitfalls that one comparison detects: closures, use_reentrant, empty_cache, GradScaler, and evaluations with graphs."""

from __future__ import annotations

from typing import Final

from vramscope.protocol import messages
from vramscope.techniques.detectors.offload import offloaded_modules
from vramscope.techniques.observation import TrainingState, plural, setting_text

LEAK_KINDS: Final = ("no_grad-missing", "growing-eval")


def closure(training: TrainingState) -> messages.Pitfall | None:
    """A checkpointed function that closes over a loop variable: in backward it calls the last block for all of them.

    Non-reentrant checkpoints then give wrong gradients without an error, reentrant ones none for the earlier blocks.
    """
    observation = training.module_calls
    problem = None if observation is None else observation.regions.bindings.problem
    if problem is None:
        return None
    count = "one checkpoint" if problem.checkpoints == 1 else f"{problem.checkpoints} checkpoints"
    name = problem.variable
    if problem.kind == "tensor":
        text = (
            f"This checkpointed function reads the tensor '{name}' from the enclosing code. In {count} of a step '{name}' was "
            "another tensor when backward ran the function again. If its values matter, gradients are wrong, without an error."
        )
        advice = f"pass it as an argument: checkpoint(function, x, {name}, use_reentrant=False)"
    elif name:
        text = (
            f"This checkpointed function reads '{name}' from the enclosing code. In {count} of a step '{name}' had changed "
            "when backward ran the function again, and another module was called. Gradients are wrong, without an error."
        )
        advice = (
            f"bind it when the function is created, lambda x, {name}={name}: ..., or pass the module itself: "
            "checkpoint(block, x, use_reentrant=False)"
        )
    else:
        text = (
            f"In {count} of a step this checkpointed function called another module in backward than in forward. Gradients "
            "are wrong, without an error."
        )
        advice = "pass the module itself: checkpoint(block, x, use_reentrant=False)"
    return training.finding("checkpoint-closure", text, advice, (problem.file, problem.line))


def no_gradient(training: TrainingState) -> messages.Pitfall | None:
    """Trained weights in a reentrant checkpoint whose inputs need no gradient: adapters in frozen blocks get none.

    Backward then never reaches the checkpoint, and runs none of its modules again.
    """
    observation = training.module_calls
    if observation is None or not observation.backwards or observation.regions.bindings.problem is not None:
        return None
    trained = {id(p) for one in training.optimizers for group in one.param_groups for p in group["params"]}
    lost = [
        parameter
        for module in observation.regions.not_recomputed(training.modules)
        for parameter in module._parameters.values()
        if parameter is not None and parameter.requires_grad and id(parameter) in trained
    ]
    if not lost:
        return None
    size = sum(parameter.numel() for parameter in lost)
    return training.finding(
        "checkpoint-without-gradient",
        f"{plural(len(lost), 'trained tensor')} ({size:,} weights) got no gradient: their blocks run in reentrant checkpoints, "
        "and no input of these needs a gradient, as it comes from frozen weights. These weights do not learn.",
        "pass use_reentrant=False to the checkpoint, or make its input need a gradient (model.enable_input_require_grads() in "
        "Transformers)",
        observation.regions.unset_at,
    )


def use_reentrant(training: TrainingState) -> messages.Pitfall | None:
    """A checkpoint without use_reentrant: its variant depends on the version of PyTorch, and the old one has gaps."""
    observation = training.module_calls
    if observation is None or observation.regions.unset_at is None:
        return None
    return training.finding(
        "use-reentrant-unset",
        "torch.utils.checkpoint is called without use_reentrant. PyTorch then uses the reentrant variant, which computes no "
        "gradients for a block whose inputs need none. Future versions will refuse such calls.",
        "pass use_reentrant=False",
        observation.regions.unset_at,
    )


def empty_cache(training: TrainingState) -> messages.Pitfall | None:
    """A call of torch.cuda.empty_cache() in every step: the memory must be requested from the driver again in each step."""
    observation = training.module_calls
    if observation is None or not training.is_sure or training.with_cache_clear < training.observed:
        return None  # if the first observed step is affected, the next step is observed too
    times = "once" if observation.cache_clears == 1 else f"{observation.cache_clears} times"
    name, steps = training.setting("torch_empty_cache_steps")
    offloaded = offloaded_modules(training)
    if name:
        advice = f"remove {setting_text(name, steps)}"
    elif offloaded:
        advice = (
            f"keep modules on the device if they fit: Accelerate does it for each of the {offloaded} offloaded modules"
        )
    else:
        advice = "call it once after an evaluation, or not at all"
    return training.finding(
        "empty-cache",
        f"torch.cuda.empty_cache() is called {times} per step. It waits for the device and takes "
        f"{_milliseconds(observation.cache_clear_ns)} of the step's {_milliseconds(observation.duration_ns)}, and the returned "
        "memory must be requested again. The peak of allocated memory stays the same.",
        f"{advice}; against fragmentation, set expandable_segments:True",
        None if name or offloaded else observation.cache_cleared_at,
    )


def grad_scaler(training: TrainingState) -> messages.Pitfall | None:
    """A GradScaler that does not match the dtype of autocast: float16 needs one, bfloat16 does not.

    Source: PyTorch's page on mixed precision (docs.pytorch.org/docs/stable/amp.html, "Gradient Scaling"), and the code of
    its GradScaler. A loss that is a product may be scaled by hand, so nothing is reported for it.
    """
    observation = training.module_calls
    if observation is None or not training.is_sure:
        return None
    if observation.learning["float16"] and not observation.scaled_losses and not observation.loss_is_product:
        return training.finding(
            "fp16-without-scaler",
            "Trained modules run under autocast to float16, but no GradScaler scales the loss. Gradients below about 6e-8 "
            "become zero in backward, without an error (PyTorch's notes on gradient scaling).",
            "use a torch.amp.GradScaler: scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update(); or autocast "
            "to bfloat16, which needs none",
        )
    narrow = set(observation.autocast) | {str(dtype).removeprefix("torch.") for _, dtype in observation.weights}
    if observation.scaled_losses and "bfloat16" in narrow and "float16" not in narrow:
        return training.finding(
            "scaler-with-bf16",
            "A GradScaler scales the loss, but nothing runs in float16. bfloat16 has the range of float32, so scaling "
            "prevents nothing. In each step the scaler checks every gradient for infinities and waits for the device, unless "
            "the optimizer is fused (torch.amp.GradScaler.step).",
            "remove the GradScaler, or create it with enabled=False if the dtype is bfloat16",
        )
    return None


def evaluation_leak(leak: messages.Leak) -> messages.Pitfall | None:
    """Forward passes whose graphs no backward pass uses, as the leak detector found them; None for other kinds of leaks."""
    if leak.kind not in LEAK_KINDS:
        return None
    action = "retain" if leak.kind == "growing-eval" else "build and drop"
    return messages.Pitfall(
        kind="evaluation-with-graphs",
        text=f"Forward passes without no_grad {action} graphs that no backward uses. The Leaks page shows what they retain.",
        advice=leak.advice,
        file=leak.file,
        line=leak.line,
        first_step=leak.first_step,
    )


def _milliseconds(nanoseconds: int) -> str:
    """``0.11 ms``, ``610 ms``."""
    value = nanoseconds / 1e6
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms"
