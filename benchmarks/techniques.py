"""Measures what detecting a training's techniques costs: observed steps against the same steps unobserved.

    python benchmarks/techniques.py [--attaches 12] [--json]

The trainings are a tiny MLP and GPT-2 small. The agent is attached repeatedly, alternately with and without the detection of
techniques. Leaks and recordings are off. Results are medians of added CPU time of the training thread: in steps 2, 5 and 20
together, in attach, and in a step between them. Other programs do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from timed_trainings import gpt2, mlp  # beside this file

from vramscope import agent

OBSERVED = (2, 5, 20)
STEPS = 40


def attached(step: Callable[[], None], techniques: bool) -> tuple[float, list[float]]:
    """Seconds that attach took, and each step."""
    began = time.thread_time()
    agent.attach(step.model, server="http://127.0.0.1:9", leaks=False, windows=False, techniques=techniques)
    took = time.thread_time() - began
    steps = []
    for _ in range(STEPS):
        start = time.thread_time()
        step()
        steps.append(time.thread_time() - start)
    agent.detach()
    return took, steps


def measure(step: Callable[[], None], attaches: int) -> dict[str, float]:
    found: dict[bool, list[tuple[float, list[float]]]] = {True: [], False: []}
    for _ in range(5):
        step()
    for number in range(2 * attaches):
        found[number % 2 == 0].append(attached(step, number % 2 == 0))

    def added(of: Callable[[tuple[float, list[float]]], float]) -> float:
        return statistics.median(map(of, found[True])) - statistics.median(map(of, found[False]))

    between = range(25, STEPS)
    return {
        "step_ms": round(1e3 * statistics.median(t for _, steps in found[False] for t in steps), 2),
        "observed_steps_added_ms": round(1e3 * added(lambda run: sum(run[1][number - 1] for number in OBSERVED)), 2),
        "attach_added_ms": round(1e3 * added(lambda run: run[0]), 2),
        "step_between_added_us": round(1e6 * added(lambda run: statistics.median(run[1][n] for n in between)), 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--attaches", type=int, default=12, help="how often the agent is attached")
    options.add_argument("--json", action="store_true", help="print JSON on one line")
    chosen = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU, real or emulated")
    with tempfile.TemporaryDirectory() as spool:
        os.environ.update(VRAMSCOPE_QUIET="1", VRAMSCOPE_SPOOL_DIR=spool, VRAMSCOPE_CLOSE_TIMEOUT_S="0")
        result = {}
        for name, make in (("mlp", mlp), ("gpt2", gpt2)):
            result[name] = measure(make("cuda"), chosen.attaches)
    result["torch"] = torch.__version__
    print(json.dumps(result, indent=None if chosen.json else 2))


if __name__ == "__main__":
    main()
