"""Measures the cost of the agent in the training thread, compared with a floor and with TraceML in the same run.

    python benchmarks/training_cost.py [--rounds 8] [--programs mlp,gan] [--variants floor,default] [--without-traceml]

Trainings: a tiny MLP (about half a millisecond a step), 20 linear layers (about two milliseconds), GPT-2 small, a DCGAN with
two optimizers, and PPO with 8 environments (8 forward passes without gradients before each step).
Variants, in random order in each round: off; the floor (one raw reading and one reset of the peaks in each step); parts of the
agent; and the agent's default. Each figure compares with the block of the same round that had the agent off. added_us and
added_fraction: the median step, in wall-clock time. loop: the time of the whole block, as a ratio. loop_cpu: the same in
processor time of the process, the agent's threads included. added_cpu_us: processor time of the training thread. A server in a
process of its own receives the samples. TraceML cannot be switched off, so it runs in processes of its own that alternate with
processes without it. whole_cost.py measures the cost of a whole process, start included.
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
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from serving import Serving  # beside this file
from timed_trainings import gan, gpt2, layers, mlp, ppo

from vramscope import agent


class Floor:
    """The least that an exact peak a step can cost: one reading, one reset."""

    def __enter__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        read, reset = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats

        def hook(*_: object) -> None:
            read(0)
            reset(0)

        self._handle = register_optimizer_step_post_hook(hook)

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


class Attached:
    """The agent, attached for one block of steps.

    always      phases in every step, whatever they cost
    peaks_only  only the allocator's peaks are read
    """

    def __init__(self, server: str, *, phases: bool, always: bool = False, peaks_only: bool = False) -> None:
        self._server, self._phases = server, "every" if always else phases
        self._rest = dict.fromkeys(("leaks", "windows", "profile", "techniques", "loss"), False if peaks_only else None)

    def __enter__(self) -> None:
        session = agent.attach(None, server=self._server, name="benchmark", phases=self._phases, **self._rest)
        session._clock.begin_again(0)

    def __exit__(self, *_: object) -> None:
        agent.detach()


class Off:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def measure(
    step: Callable[[], None], variants: dict[str, Callable[[], object]], rounds: int, seconds: float, settle: float
) -> dict:
    """Median step of each variant in µs, and medians over rounds of the differences to the off block of the round.

    Each block runs ``seconds`` after ``settle`` seconds that are not counted (one second where no agent is).
    An attach starts threads, asks git and NVML and opens a connection, once a training. Until 0.3 s were spent on watching,
    every step is watched.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    loops: dict[str, list[Block]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            with variants[name]():
                run(step, settle if isinstance(variants[name], partial) else min(settle, 1.0))
                block = run(step, seconds)
            times[name].append(block.median_us)
            loops[name].append(block)
    off, loop_off = times["off"], loops["off"]
    return {
        name: {
            "step_us": round(statistics.median(values), 1),
            "added_us": round(statistics.median(a - b for a, b in zip(values, off, strict=True)), 1),
            "added_fraction": round(statistics.median(a / b - 1 for a, b in zip(values, off, strict=True)), 4),
            "added_cpu_us": round(
                statistics.median(a.thread_us - b.thread_us for a, b in zip(loops[name], loop_off, strict=True)), 1
            ),
            "loop": ratios(a.mean_us / b.mean_us for a, b in zip(loops[name], loop_off, strict=True)),
            "loop_cpu": ratios(a.process_us / b.process_us for a, b in zip(loops[name], loop_off, strict=True)),
            "longest_ms": round(statistics.median(block.longest_us for block in loops[name]) / 1000, 2),
        }
        for name, values in times.items()
    }


def ratios(found: Iterable[float]) -> list[float]:
    """Lowest, median and highest."""
    values = sorted(found)
    return [round(value, 4) for value in (values[0], statistics.median(values), values[-1])]


class Block(NamedTuple):
    """Times a step in µs: median, mean and longest by the clock; this thread's and the process's processor time."""

    median_us: float
    mean_us: float
    longest_us: float
    thread_us: float
    process_us: float


def run(step: Callable[[], None], seconds: float) -> Block:
    """Trains for this number of seconds."""
    taken: list[int] = []
    thread, process, began = time.thread_time(), time.process_time(), time.perf_counter()
    end = began + seconds
    while time.perf_counter() < end:
        start = time.perf_counter_ns()
        step()
        taken.append(time.perf_counter_ns() - start)
    torch.cuda.synchronize()
    count = len(taken) / 1e6
    return Block(
        median_us=statistics.median(taken) / 1000,
        mean_us=(time.perf_counter() - began) / count,
        longest_us=max(taken) / 1000,
        thread_us=(time.thread_time() - thread) / count,
        process_us=(time.process_time() - process) / count,
    )


def resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


BARE = """
import contextlib, json, os, statistics, sys, time
sys.path.insert(0, {here!r})
from timed_trainings import mlp
from training_cost import resident_mib
{prelude}
step = mlp("cuda")
around = {around}
def one():
    with around():
        step()
for _ in range(500): one()
taken = []
for _ in range(4000):
    a = time.perf_counter_ns(); one(); taken.append(time.perf_counter_ns() - a)
processes = len([p for p in os.listdir("/proc") if p.isdigit()])
open({result!r}, "w").write(json.dumps([statistics.median(taken) / 1000, resident_mib(), processes]))
"""


def beside_traceml(server: str, rounds: int) -> dict:
    """The MLP in whole processes: bare, under vramscope, under TraceML from the index. {} where that cannot be had."""
    here = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as folder:
        target, result = Path(folder, "traceml"), Path(folder, "result.json")
        without_torch = Path(folder, "overrides.txt")
        without_torch.write_text("torch ; python_version < '3'\n")  # it is here already
        install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(target), "traceml-ai==0.5.0"]
        done = subprocess.run(
            [*install, "--override", str(without_torch)], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            print("TraceML could not be installed, so it was not measured:", done.stderr[-300:], file=sys.stderr)
            return {}
        nothing = "contextlib.nullcontext"
        kinds = {
            "off": ("", nothing, []),
            "vramscope": ("from vramscope import agent; agent.attach(name='benchmark')", nothing, []),
            "traceml": (
                "import traceml_ai; traceml_ai.init(mode='auto')",
                "lambda: traceml_ai.trace_step(step.model)",
                [
                    "-c",
                    "import sys; from traceml_ai.launcher.cli import main; sys.argv[0] = 'traceml'; sys.exit(main())",
                    "run",
                ],
            ),
        }
        environments = {"vramscope": {"VRAMSCOPE_SERVER": server}, "traceml": {"PYTHONPATH": str(target)}}
        found: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, (prelude, around, launcher) in kinds.items():
                script = Path(folder, f"train_{kind}.py")  # not vramscope.py: it would be imported in its place
                script.write_text(BARE.format(here=here, prelude=prelude, around=around, result=str(result)))
                result.unlink(missing_ok=True)
                done = subprocess.run(
                    [sys.executable, *launcher, str(script)],
                    capture_output=True,
                    text=True,
                    timeout=300,
                    cwd=folder,
                    env={**os.environ, **environments.get(kind, {})},
                    check=False,
                )
                if result.exists():
                    found[kind].append(json.loads(result.read_text()))
                else:
                    print(f"{kind} did not run: {(done.stderr or done.stdout)[-500:]}", file=sys.stderr)
    off = found["off"]
    return {
        kind: {
            "step_us": round(statistics.median(r[0] for r in results), 1),
            "added_us": round(statistics.median(a[0] - b[0] for a, b in zip(results, off, strict=False)), 1),
            "added_rss_mib": round(statistics.median(a[1] - b[1] for a, b in zip(results, off, strict=False)), 1),
            "added_processes": statistics.median(a[2] - b[2] for a, b in zip(results, off, strict=False)),
            "runs": len(results),
        }
        for kind, results in found.items()
        if results
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=8, help="number of rounds")
    options.add_argument(
        "--settle", type=float, default=8.0, help="seconds at the start of each block that are not counted"
    )
    options.add_argument("--seconds", type=float, default=5.0, help="seconds of each block that are counted")
    options.add_argument("--programs", default="mlp,layers,gpt2", help="trainings to run")
    options.add_argument("--variants", default="", help="variants to run besides off; all by default")
    options.add_argument("--without-traceml", action="store_true", help="leave out the comparison with TraceML")
    options.add_argument("--json", action="store_true", help="print JSON on one line")
    chosen = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU, real or emulated: the allocator's counters cannot be timed")
    os.environ["VRAMSCOPE_QUIET"] = "1"
    with Serving() as serving:
        attached = partial(Attached, serving.url)
        variants: dict[str, Callable[[], object]] = {
            "off": Off,
            "floor": Floor,
            "step_peaks": partial(attached, phases=False, peaks_only=True),
            "phase_peaks": partial(attached, phases=True, always=True, peaks_only=True),
            "all_but_phases": partial(attached, phases=False),
            "all_phases": partial(attached, phases=True, always=True),
            "default": partial(attached, phases=True),
        }
        if chosen.variants:
            variants = {name: variants[name] for name in ("off", *chosen.variants.split(",")) if name in variants}
        few = {name: variants[name] for name in ("off", "floor", "step_peaks", "default") if name in variants}
        programs = {
            "mlp": (mlp, variants),
            "layers": (layers, few),
            "gpt2": (gpt2, few),
            "gan": (gan, few),
            "ppo": (ppo, few),
        }
        result: dict[str, object] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
        for name in chosen.programs.split(","):
            make, some = programs[name]
            step = make("cuda")
            run(step, 2.0)
            before = resident_mib()
            result[name] = measure(step, some, chosen.rounds, chosen.seconds, chosen.settle)
            result[f"{name}_rss_added_mib"] = round(resident_mib() - before, 1)
            print(f"{name}: {json.dumps(result[name])}", file=sys.stderr, flush=True)
        if not chosen.without_traceml:
            with suppress(subprocess.TimeoutExpired):
                result["processes"] = beside_traceml(serving.url, 3)
    result["device"] = torch.cuda.get_device_name()
    result["torch"] = torch.__version__
    print(json.dumps(result, indent=None if chosen.json else 2))


if __name__ == "__main__":
    main()
