"""Measures what a recording of allocator history costs while it is open, after it, and in a whole run.

    python benchmarks/recorder.py [--rounds 10] [--steps 1000] [--json]

The training is GPT-2 small.
*Inside*: blocks of steps under PyTorch's own recording and in a recording of the agent, with and without Python stacks, in random
order. All have the agent's hooks. The time of the recorder's own functions in a step is measured too.
*Outside*: steps after a recording against steps before it, in new processes, and the same in processes without a recording.
*Share*: the time that all default recordings of a run take by their own count, in the training thread and in the agent's, as a
share of the time of that many steps.

All times are CPU time. Other work on the machine changes them only through the caches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from timed_trainings import gpt2  # beside this file

from vramscope import agent
from vramscope.memory.peak_counters import share_peak_counters
from vramscope.recording import recorder, window_state
from vramscope.recording.plan import FIRST, WindowPlan, WindowRequest
from vramscope.recording.recorder import WindowRecorder
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks
from vramscope.transport.ring import Ring

BLOCK_STEPS = 8


class One(WindowPlan):
    """One window of a block's length."""

    def __init__(self, *, stacks: bool) -> None:
        super().__init__()
        self._one: WindowRequest | None = WindowRequest("benchmark", BLOCK_STEPS + 1, 0 if stacks else BLOCK_STEPS + 1)

    def next_request(self) -> WindowRequest | None:
        return self._one

    def mark_started(self, wish: WindowRequest) -> None:
        self._one = None


class Window(AbstractContextManager[None]):
    def __init__(self, clock: StepClock, hooks: LoopHooks, *, stacks: bool) -> None:
        self._recorder = WindowRecorder(
            clock, Ring(), roots=hooks.roots, optimizers=hooks.optimizers, plan=One(stacks=stacks), pace_s=0.0
        )

    def __enter__(self) -> None:
        self._recorder.begin()

    def __exit__(self, *_: object) -> None:
        self._recorder.close()


class OwnHistory(AbstractContextManager[None]):
    """As a user would switch it on, with Python stacks of allocations or with none."""

    def __init__(self, *, stacks: bool) -> None:
        self._stacks = stacks

    def __enter__(self) -> None:
        torch.cuda.memory._record_memory_history(context="alloc" if self._stacks else None, stacks="python")

    def __exit__(self, *_: object) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)


class Off(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None: ...


def inside(rounds: int) -> dict:
    step = gpt2("cuda")
    clock = StepClock(in_every_step=True)  # so that all blocks are alike
    hooks = LoopHooks(clock)
    hooks.install()
    hooks.models.find()
    for _ in range(5):
        step()
    clock.watch(share_peak_counters().watch(0))
    variants: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "off": Off,
        "pytorch": lambda: OwnHistory(stacks=False),
        "window": lambda: Window(clock, hooks, stacks=False),
        "pytorch_stacks": lambda: OwnHistory(stacks=True),
        "window_stacks": lambda: Window(clock, hooks, stacks=True),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            with variants[name]():
                taken = []
                for _ in range(BLOCK_STEPS):
                    start = time.process_time_ns()
                    step()
                    taken.append(time.process_time_ns() - start)
            times[name].append(statistics.median(taken[1:]) / 1e6)
            for _ in range(4):  # what was recorded is converted meanwhile
                step()
    hooks.remove()
    return {
        "step_ms": {name: round(statistics.median(values), 3) for name, values in times.items()},
        "window_over_pytorch": ratio(times["window"], times["pytorch"]),
        "window_over_pytorch_stacks": ratio(times["window_stacks"], times["pytorch_stacks"]),
    }


CALLS = ("entered", "inputs", "end_step")
"""Functions of the recorder that the clock and the hooks call in each step."""


def own(rounds: int) -> dict:
    """What the recorder's calls take in a step of a window with stacks, in microseconds: median and least. Modules' names apart."""
    taken = [0.0]

    def timed(call: Callable[..., None]) -> Callable[..., None]:
        def around(*args: object) -> None:
            began = time.thread_time_ns()
            call(*args)
            taken[0] += time.thread_time_ns() - began

        return around

    step = gpt2("cuda")
    clock = StepClock(in_every_step=True)
    hooks = LoopHooks(clock)
    hooks.install()
    hooks.models.find()
    for _ in range(3):
        step()
    clock.watch(share_peak_counters().watch(0))
    steps_us: list[float] = []
    for _ in range(rounds):
        window = Window(clock, hooks, stacks=True)
        for name in CALLS:
            setattr(window._recorder, name, timed(getattr(window._recorder, name)))
        with window:
            for _ in range(BLOCK_STEPS):
                taken[0] = 0.0
                step()
                steps_us.append(taken[0] / 1000)
    hooks.remove()
    return {"median_us": round(statistics.median(steps_us)), "least_us": round(min(steps_us))}


def ratio(these: list[float], those: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(these, those, strict=True)), 4)


def block(step: Callable[[], None], steps: int = 150) -> float:
    """Median step in ms of CPU time."""
    taken = []
    for _ in range(steps):
        start = time.process_time_ns()
        step()
        taken.append(time.process_time_ns() - start)
    return statistics.median(taken) / 1e6


def pair() -> dict[str, float]:
    """Nanoseconds of an allocation with its free, and of a record_function: where a hook that is left behind would show."""

    def allocate() -> None:
        torch.empty(1000, device="cuda")

    def annotate() -> None:
        with torch.profiler.record_function("step"):
            pass

    return {
        what.__name__: round(min(timeit.repeat(what, number=5000, repeat=20)) / 5000 * 1e9)
        for what in (allocate, annotate)
    }


def before_and_after(how: str) -> None:
    """In a process of its own: prints the step before a window (or nothing) and after it, and the pair."""
    step = gpt2("cuda")
    for _ in range(20):
        step()
    pairs, before = pair(), block(step)
    clock = StepClock()
    hooks = LoopHooks(clock)
    hooks.install()
    clock.watch(share_peak_counters().watch(0))
    recorder = WindowRecorder(clock, Ring(), roots=hooks.roots, optimizers=hooks.optimizers, pace_s=0.0)
    if how == "window":
        recorder.begin()
    for _ in range(FIRST.steps + 1):
        step()
    recorder.close()
    hooks.remove()
    for _ in range(20):
        step()
    print(json.dumps([before, block(step), pairs, pair()]))


def outside(rounds: int) -> dict:
    changes: dict[str, list[float]] = {"window": [], "nothing": []}
    pairs: dict[str, list[list[int]]] = {"allocate": [], "annotate": []}
    for _ in range(rounds):
        for how in random.sample(list(changes), 2):
            done = subprocess.run(
                [sys.executable, __file__, "--before-and-after", how], capture_output=True, text=True, check=True
            )
            before, after, first, second = json.loads(done.stdout.splitlines()[-1])
            changes[how].append(round(after / before, 4))
            if how == "window":
                for what, measured in pairs.items():
                    measured.append([first[what], second[what]])
    return {
        **{f"after_over_before_{how}": sorted(values) for how, values in changes.items()},
        **{f"{what}_ns_before_and_after": measured for what, measured in pairs.items()},
    }


def share(steps: int) -> None:
    """In a process of its own: prints the share of a run's time that its windows took, and how many there were."""
    step = gpt2("cuda")
    step()  # (kernels are loaded in the first step, which takes seconds)
    recorder.time = window_state.time = CpuTime
    session = agent.attach(None, name="benchmark")
    plan = session._recorder._plan
    windows_ms: list[float] = []
    ended = plan.ended
    session._recorder._packing._on_cost = lambda *cost: (windows_ms.append(round(cost[1] * 1000, 1)), ended(*cost))
    began = time.process_time()
    for _ in range(steps):
        step()
    seconds = time.process_time() - began
    agent.detach()
    spent = plan._spent_s
    print(
        json.dumps({"steps": steps, "seconds": round(seconds, 2), "windows_ms": windows_ms, "share": spent / seconds})
    )


class CpuTime:
    """What the recorder's account reads in place of the clock on the wall."""

    time_ns = time.time_ns
    perf_counter_ns = time.thread_time_ns


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10, help="number of rounds")
    options.add_argument("--steps", type=int, default=1000, help="steps of the run whose share is measured")
    options.add_argument("--json", action="store_true", help="print JSON on one line")
    options.add_argument("--before-and-after", choices=["window", "nothing"], help=argparse.SUPPRESS)
    options.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU, real or emulated: its allocator cannot be recorded")
    if chosen.before_and_after:
        before_and_after(chosen.before_and_after)
        return
    if chosen.share:
        share(chosen.steps)
        return
    if chosen.own:
        print(json.dumps(own(chosen.rounds)))
        return
    result = {
        "inside": inside(chosen.rounds),
        "own": own(chosen.rounds),
        "outside": outside(max(1, chosen.rounds // 3)),
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--share", "--steps", str(chosen.steps)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "VRAMSCOPE_SPOOL_DIR": str(Path(folder, "spool")), "VRAMSCOPE_QUIET": "1"},
        )
    result["share"] = json.loads(done.stdout.splitlines()[-1])
    result["device"], result["torch"] = torch.cuda.get_device_name(), torch.__version__
    print(json.dumps(result, indent=None if chosen.json else 2))


if __name__ == "__main__":
    main()
