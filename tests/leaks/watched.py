"""Runs a loop as a session would watch it, and keeps each look with how far the loop was then."""

from __future__ import annotations

import contextlib
import gc
import io
from typing import Any

import torch
from meter import Steps

from vramscope import wire


def watch(loop: Any, device: str) -> list[dict[str, Any]]:
    """Each look in order: ``{"steps": done by then, "look": wire.Look}``. Raises what the detector raises."""
    from vramscope.graphs.watch import GraphWatch
    from vramscope.guard import guard
    from vramscope.memory.allocator import share_peak_counters
    from vramscope.steps import loop as loops
    from vramscope.steps.clock import StepClock

    guard.raise_faults = True
    gc.collect()
    looks: list[dict[str, Any]] = []
    steps, clock = Steps(), StepClock()

    def report(look: wire.Look) -> None:
        looks.append({"steps": steps.count, "look": look})

    if device == "cuda":
        torch.zeros(1, device=device)
        clock.watch(share_peak_counters().watch(0))
    hooks = loops.LoopHooks(clock)
    hooks.graphs = GraphWatch(clock, report=report)
    hooks.install()
    loops.connect(None, hooks)
    try:
        with steps.watched(), contextlib.redirect_stdout(io.StringIO()):
            loop(device)
    finally:
        hooks.remove()
        gc.collect()
    return looks
