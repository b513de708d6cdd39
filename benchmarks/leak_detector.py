"""Measures what the leak detector costs in each step and in each scan.

    python benchmarks/leak_detector.py [--rounds 8] [--scans]

A tiny MLP trains in blocks, once with the hooks of the step clock only and once with the graph watch too, in random order. A step
takes half a millisecond, so microseconds can be measured. The figure is the median difference over the rounds. The hooks' own
time is measured separately, call by call. Scans are measured in CPU time of their thread, in a process as large as a training:
PyTorch and Transformers are imported, and there are some 400,000 objects. One loop leaks and one does not. Further scans have one
million or five million small objects more, or 50,000 or a million tensors. --scans measures the scans only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timed_trainings import mlp  # beside this file

from vramscope.integrations import plain
from vramscope.leaks.detector import LeakDetector
from vramscope.protocol import messages
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks

GOAL_US = 60
BLOCK_SECONDS = 1.5
WARM_UP_STEPS = 300
"""Steps of each block that are not counted, because the first scans are in them."""


@contextmanager
def hooks(graphs: bool, scans: list[messages.Scan] | None = None) -> Iterator[LoopHooks]:
    clock = StepClock()
    installed = LoopHooks(clock)
    if graphs:
        installed.graphs = LeakDetector(clock, report=(scans if scans is not None else []).append)
    installed.install()
    plain.connect(None, installed)
    try:
        yield installed
    finally:
        installed.remove()


@contextmanager
def nothing() -> Iterator[None]:
    yield


def added_us(step: Callable[[], None], rounds: int) -> dict[str, float]:
    """Median step of each variant in µs, and what the graph watch adds to the hooks."""
    variants: dict[str, Callable[[], Any]] = {
        "off": nothing,
        "hooks": lambda: hooks(graphs=False),
        "leaks": lambda: hooks(graphs=True),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            with variants[name]():
                for _ in range(WARM_UP_STEPS):
                    step()
                taken, end = [], time.perf_counter() + BLOCK_SECONDS
                while time.perf_counter() < end:
                    start = time.perf_counter_ns()
                    step()
                    taken.append(time.perf_counter_ns() - start)
            times[name].append(statistics.median(taken) / 1000)
    medians = {f"{name}_step_us": round(statistics.median(values), 1) for name, values in times.items()}
    differences = [leaks - bare for leaks, bare in zip(times["leaks"], times["hooks"], strict=True)]
    return {**medians, "added_us": round(statistics.median(differences), 1)}


def inside_us(step: Callable[[], None], steps: int = 2_000) -> dict[str, float]:
    """The watch's own calls, timed one by one: µs a step. Includes the timing itself, 0.2 µs a call."""
    spent: dict[str, list[int]] = {}
    with hooks(graphs=True) as installed:
        watch = installed.graphs
        for name in ("before_walk", "stepped", "end_step", "before_forward", "after_forward"):
            spent[name] = []
            original = getattr(watch, name)

            def timed(*args: Any, _original: Any = original, _spent: list[int] = spent[name], **more: Any) -> Any:
                start = time.perf_counter_ns()
                answer = _original(*args, **more)
                _spent.append(time.perf_counter_ns() - start)
                return answer

            setattr(watch, name, timed)
        for _ in range(WARM_UP_STEPS):
            step()
        for calls in spent.values():
            calls.clear()
        for _ in range(steps):
            step()
    figures = {name: round(sum(calls) / steps / 1000, 2) for name, calls in spent.items()}
    return {**figures, "all": round(sum(figures.values()), 2)}


def scans_ms(leaking: bool, beside: Any = None) -> dict[str, Any]:
    """Milliseconds of each scan in a training of 80 steps; ``beside``: further live objects."""
    import transformers  # noqa: F401 - a training process has it

    scans: list[messages.Scan] = []
    step = mlp("cuda" if torch.cuda.is_available() else "cpu")
    kept = []
    with hooks(graphs=True, scans=scans):
        for _ in range(80):
            step()
            if leaking:
                kept.append((step.model[0].weight * 2).sum())  # type: ignore[attr-defined]
    seconds = [scan.seconds * 1000 for scan in scans]
    return {
        "objects": len(gc.get_objects()),
        "scans": len(scans),
        "median_ms": round(statistics.median(seconds), 1),
        "worst_ms": round(max(seconds), 1),
        "in_all_ms": round(sum(seconds), 1),
        "left_out": sorted({scan.not_scanned for scan in scans} - {""}),
        "found": sorted({leak.name for scan in scans for leak in scan.leaks}),
        "load": round(os.getloadavg()[0], 1),
    }


BESIDE: dict[str, Callable[[], list[Any]]] = {
    "a_million_objects": lambda: [[] for _ in range(1_000_000)],
    "five_million_objects": lambda: [[] for _ in range(5_000_000)],
    "many_tensors": lambda: [torch.empty(1) for _ in range(50_000)],
    "a_million_tensors": lambda: [torch.empty(1) for _ in range(1_000_000)],
    "a_million_in_lists": lambda: [[torch.empty(1) for _ in range(1_000)] for _ in range(1_000)],
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=8, help="number of rounds")
    options.add_argument("--scans", action="store_true", help="measure the scans only")
    chosen = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    step = mlp(device)
    result = {
        "device": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "goal_us": GOAL_US,
        **({} if chosen.scans else {"mlp": added_us(step, chosen.rounds), "inside_us": inside_us(step)}),
        "scans": scans_ms(leaking=False),
        "scans_of_a_leak": scans_ms(leaking=True),
        **{f"scans_with_{name}": scans_ms(leaking=True, beside=make()) for name, make in BESIDE.items()},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
