"""Measures what a profile costs a training: while it is open, when it closes, in the agent's thread, and afterwards.

    python benchmarks/profiler.py [--rounds 5] [--json]

The trainings are GPT-2 small and a tiny MLP. Each round starts a process for each kind of profile, and one without a profile. It
has steps before, two steps in the profile (one if the agent starts it) and steps after. *First* is the first profile of the
process, for which PyTorch's tracer starts. *Then* is the next one. Steps before and after are measured in CPU time of the
process. Steps in a profile are too few for that, so they are measured in wall-clock time. So are opening and closing, for which
the training waits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable

import torch
from timed_trainings import gpt2, mlp  # beside this file

from vramscope.memory.peak_counters import share_peak_counters
from vramscope.profiler.plan import ASKED, LINES, WARM, ProfilePlan, ProfileRequest
from vramscope.profiler.recorder import ProfileRecorder
from vramscope.protocol.messages import Piece
from vramscope.protocol.profile import unpack
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks
from vramscope.transport.ring import Ring

WISHES: dict[str, ProfileRequest | None] = {
    "nothing": None,
    "by itself": WARM,
    "with stacks": LINES,
    "asked for": ASKED,
}
MODELS: dict[str, Callable[[str], Callable[[], None]]] = {"gpt2": gpt2, "mlp": mlp}
STEPS = 120


class PlanOnRequest(ProfilePlan):
    """Profile when it is switched on."""

    def __init__(self) -> None:
        super().__init__(by_itself=False)
        self.next: ProfileRequest | None = None
        self.packed = 0

    def is_due(self, step: int) -> bool:
        return True

    def next_request(self, step: int, step_s: float) -> ProfileRequest | None:
        return self.next

    def mark_started(self, wish: ProfileRequest) -> None:
        self.next = None

    def ended(self, wish: ProfileRequest, seconds: float) -> None:
        self.packed += 1


def block(step: Callable[[], None]) -> float:
    """Median step in ms of CPU time."""
    taken = []
    for _ in range(STEPS):
        start = time.process_time_ns()
        step()
        taken.append(time.process_time_ns() - start)
    return statistics.median(taken) / 1e6


def annotate() -> None:
    with torch.profiler.record_function("step"):
        pass


def one(model: str, how: str) -> None:
    """In a process of its own: prints what one kind of profile cost, twice."""
    step = MODELS[model]("cuda")
    clock = StepClock(in_every_step=True)  # all steps alike
    hooks = LoopHooks(clock)
    hooks.install()
    hooks.models.find()
    for _ in range(10):
        step()
    clock.watch(share_peak_counters().watch(0))
    ring, plan = Ring(), PlanOnRequest()
    recorder = ProfileRecorder(clock, ring, roots=hooks.roots, plan=plan, pace_s=0.0)
    recorder.begin()
    for _ in range(20):
        step()
    result: dict[str, object] = {"before_ms": block(step), "annotate_ns_before": pair()}
    wish = WISHES[how]
    if wish is not None:
        costs = []
        for number in (1, 2):
            plan.next = wish
            while plan.packed < number:
                step()
            costs.append(unpack(last(ring)).cost)
        for name, cost in zip(("first", "then"), costs, strict=True):
            result[name] = {
                "opening_ms": cost.opening * 1e3,
                "step_ms": (cost.step_within or 0) * 1e3,
                "step_before_ms": (cost.step_before or 0) * 1e3,
                "closing_ms": cost.closing * 1e3,
                "packing_ms": cost.packing * 1e3,
            }
    for _ in range(20):
        step()
    result |= {"after_ms": block(step), "annotate_ns_after": pair()}
    recorder.close()
    hooks.remove()
    print(json.dumps(result))


def pair() -> float:
    return round(min(timeit.repeat(annotate, number=5000, repeat=10)) / 5000 * 1e9)


def last(ring: Ring) -> bytes:
    while True:
        pieces = [message for message in ring.take(1 << 30) if isinstance(message, Piece)]
        if pieces:
            return b"".join(piece.data for piece in pieces)
        time.sleep(0.01)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5, help="number of rounds")
    options.add_argument("--json", action="store_true", help="print JSON on one line")
    options.add_argument("--one", nargs=2, metavar=("MODEL", "HOW"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU, real or emulated: its allocator cannot be profiled")
    if chosen.one:
        one(*chosen.one)
        return
    found: dict[str, dict[str, list[dict]]] = {model: {how: [] for how in WISHES} for model in MODELS}
    for _ in range(chosen.rounds):
        for model in MODELS:
            for how in random.sample(list(WISHES), len(WISHES)):
                done = subprocess.run(
                    [sys.executable, __file__, "--one", model, how], capture_output=True, text=True, check=True
                )
                found[model][how].append(json.loads(done.stdout.splitlines()[-1]))
    result = {model: {how: middle(runs) for how, runs in hows.items()} for model, hows in found.items()}
    result["load"] = os.getloadavg()[0]
    result["device"], result["torch"] = torch.cuda.get_device_name(), torch.__version__
    print(json.dumps(result, indent=None if chosen.json else 2))


def middle(runs: list[dict]) -> dict:
    """Medians of each figure, and of after over before."""
    fields: dict = {}
    for key, value in runs[0].items():
        if isinstance(value, dict):
            fields[key] = {name: round(statistics.median(run[key][name] for run in runs), 3) for name in value}
        else:
            fields[key] = round(statistics.median(run[key] for run in runs), 3)
    fields["after_over_before"] = round(statistics.median(run["after_ms"] / run["before_ms"] for run in runs), 3)
    return fields


if __name__ == "__main__":
    main()
