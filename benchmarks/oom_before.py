"""Measures what the record of an out-of-memory error costs before there is an error. Steps with and without it alternate.

    python benchmarks/oom_before.py [--blocks 120] [--steps 50] [--layers 4] [--json]

Without the record, the forward hook does not read the rows of the batch, the observer is not called, and the sampler keeps no
rows, losses or steps of the last minute. It does not search for errors of other ranks either. Everything else of the agent runs.
Results: processor time of the training thread a step and of the sampler thread a reading, and the agent's Python calls in the
steps that have the fewest. Calls are counted in steps that are not timed. noise_us is the difference between two halves of the
steps without the record. A smaller difference means nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
from torch import nn

from vramscope import agent
from vramscope.oom import observer


class OomRecordSwitch:
    """Takes the parts that run before an error out of a session, and puts them in again."""

    def __init__(self, session: Any) -> None:
        self._hooks, self._sampler = session._hooks, session._sampler
        self._recorder, self._reported = session._oom, session._reported
        self._ticks = self._sampler.at_ticks
        self._into_history = self._sampler._on_sample, self._sampler._on_steps

    def off(self) -> None:
        observer.stop()
        self._hooks._rows_of = lambda module, args, kwargs: None
        self._sampler._on_sample = lambda device, row: None
        self._sampler._on_steps = lambda steps: None
        self._sampler.at_ticks = self._reported.carry
        self._reported._recent = {}

    def on(self) -> None:
        observer.listen(self._recorder)
        vars(self._hooks).pop("_rows_of", None)
        self._sampler._on_sample, self._sampler._on_steps = self._into_history
        self._sampler.at_ticks = self._ticks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--blocks", type=int, default=120, help="number of blocks of steps; half of them are without the record"
    )
    parser.add_argument("--steps", type=int, default=50, help="steps of each block")
    parser.add_argument("--layers", type=int, default=4, help="layers of the MLP")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # (No server answers there: nobody's work on the other side is in these numbers.)
        os.environ |= {
            "VRAMSCOPE_SERVER": "http://127.0.0.1:9",
            "VRAMSCOPE_SPOOL_DIR": folder,
            "VRAMSCOPE_INTERVAL_MS": "20",
        }
        os.environ |= {"VRAMSCOPE_WINDOWS": "0", "VRAMSCOPE_PROFILE": "0"}
        session = agent.attach()
        measured = measure(session, words)
        session.close()
    print(json.dumps(measured) if words.json else "\n".join(f"{name}: {value}" for name, value in measured.items()))


def measure(session: Any, words: argparse.Namespace) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(words.layers)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.empty(64, 256, device=device)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(300):
        step()
    switch = OomRecordSwitch(session)
    calls = {}
    for name, turn in (("without", switch.off), ("with", switch.on)):
        turn()
        calls[name] = calls_of_agent(step)
    order = [name for name in ("with", "without") for _ in range(words.blocks // 2)]
    random.Random(0).shuffle(order)
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    sampler: dict[str, list[float]] = {"with": [], "without": []}
    for name in order:
        (switch.on if name == "with" else switch.off)()
        step()
        began, sampled, at = time.thread_time(), session._sampler._own_cpu_seconds, time.monotonic()
        for _ in range(words.steps):
            step()
        seconds[name].append((time.thread_time() - began) / words.steps)
        ticks = max(1.0, (time.monotonic() - at) / 0.02)
        sampler[name].append((session._sampler._own_cpu_seconds - sampled) / ticks)
    switch.on()
    step_us = {name: statistics.median(found) * 1e6 for name, found in seconds.items()}
    tick_us = {name: statistics.fmean(found) * 1e6 for name, found in sampler.items()}
    plain = seconds["without"]
    return {
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
        "load": round(os.getloadavg()[0], 1),
        "step_us": {name: round(value, 1) for name, value in step_us.items()},
        "difference_us": round(step_us["with"] - step_us["without"], 2),
        "noise_us": round(abs(statistics.median(plain[::2]) - statistics.median(plain[1::2])) * 1e6, 2),
        "agent_calls_a_step": calls,
        "sampler_tick_us": {name: round(value, 1) for name, value in tick_us.items()},
    }


def calls_of_agent(step: Any) -> int:
    """Calls of the agent's Python functions in a step, in this thread: the fewest of 101 steps."""
    found = []
    reported = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal reported
        reported += event == "call" and f"{os.sep}vramscope{os.sep}" in frame.f_code.co_filename

    for _ in range(101):
        reported = 0
        sys.setprofile(profile)
        step()
        sys.setprofile(None)
        found.append(reported)
    return min(found)


if __name__ == "__main__":
    main()
