"""Observes the trainings of ``cases`` and ``framework_cases`` one after the other in one process."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from typing import Any

import framework_cases  # noqa: F401 - it registers its cases
import torch
from cases import CASES, DEVICE, kept
from torch import nn

COMPILING = ("compiled", "flex", "of_ones_own")
"""Parts of names of cases that compile, or are prevented from compiling."""


def watched(name: str) -> list[Any]:
    """Technique messages that the agent would send, in order."""
    from vramscope.guard import guard
    from vramscope.integrations import accelerate, deepspeed, huggingface, lightning, plain
    from vramscope.integrations.extensions import extend
    from vramscope.memory.peak_counters import share_peak_counters
    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks
    from vramscope.techniques.detector import TechniqueDetector

    guard.raise_faults = True
    torch.manual_seed(0)
    seen: list[Any] = []
    target, train = CASES[name]()
    clock = StepClock()
    if DEVICE == "cuda":
        torch.zeros(1, device=DEVICE)
        clock.watch(share_peak_counters().watch(0))
    hooks = LoopHooks(clock)
    extend(hooks)
    watch = TechniqueDetector(clock, hooks, report=seen.append)
    hooks.install()
    for framework in (huggingface, lightning, accelerate, deepspeed, plain):
        connection = framework.connect(target, hooks)
        if connection is not None:
            watch.begin(connection.framework, connection.config)
            break
    try:
        train()
    finally:
        hooks.remove()
        left_in_modules.extend(hooks_left_in(target) if isinstance(target, nn.Module) else ())
        del target, train
        kept.clear()
        if name.startswith("earlier_run"):
            gc.collect()
        if any(word in name for word in COMPILING):
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
        for products in (
            torch.backends,
            torch.backends.cuda.matmul,
        ):  # what allows TF32 does it for all that comes after
            if hasattr(products, "fp32_precision"):  # 2.9 and later
                products.fp32_precision = "none"
            elif hasattr(products, "allow_tf32"):
                products.allow_tf32 = False
    return seen


left_in_modules: list[str] = []


def hooks_left_in(model: nn.Module) -> Iterator[str]:
    """Yield hooks in the user's modules that the user has not registered."""
    for name, module in model.named_modules():
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            if getattr(hook, "__module__", type(hook).__module__).startswith("vramscope"):
                yield f"a hook in {name or 'the model'}"


def left_behind() -> Iterator[str]:
    """Yield hooks and patches that were not removed."""
    from vramscope.process.module_calls import module_calls
    from vramscope.process.watched_calls import is_watched

    yield from left_in_modules
    left_in_modules.clear()
    if module_calls.listens_to_all:
        yield "a listener to all modules"
    going_up = (torch.autograd.graph.saved_tensors_hooks, "__enter__")
    for owner, attribute in ((torch.cuda, "empty_cache"), (torch.amp.GradScaler, "scale"), going_up):
        if hasattr(getattr(owner, attribute), "__wrapped__") or is_watched(getattr(owner, attribute)):
            yield attribute


def run_all() -> dict[str, Any]:
    """Case -> first and last message or error, and remaining hooks, as plain values."""
    import msgspec

    from vramscope.protocol import messages as wire_messages

    answers: dict[str, Any] = {}
    for name in CASES:
        try:
            messages = watched(name)
            fields = {"first": msgspec.to_builtins(messages[0]), "last": msgspec.to_builtins(messages[-1])}
            msgspec.convert(
                list(fields.values()), list[wire_messages.Techniques]
            )  # what the wire does not take is lost, all of it
        except Exception:  # a library whose releases do not get along takes its own case with it, and no other
            messages, fields = [], {"failed": traceback.format_exc()}
        answers[name] = {**fields, "messages": len(messages), "left": list(left_behind())}
    return answers
