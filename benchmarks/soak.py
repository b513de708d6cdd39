"""Runs a server and an agent for a long time at low load, and checks that memory, file descriptors and threads stay flat.

    python benchmarks/soak.py                      # prints text; takes 60 minutes
    python benchmarks/soak.py --minutes 20 --json  # prints one JSON object
    python benchmarks/soak.py --write              # writes the stored result of benchmarks/results into docs/attacks.md

The agent watches a training on the CPU. Short runs and page requests come every two seconds. The figures are those of the server
process and of the training process. The first third is left out, because caches fill then. Growth is the slope of a line through
the rest (Theil-Sen, which outliers do not change). Goal: less than 5 MiB an hour, and no more descriptors or threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from cluster import new_run
from serving import Serving
from wire_senders import Rank, Sent

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "results" / "soak_2026-11-30.json"
PAGE = ROOT / "docs" / "attacks.md"
BEGIN, END = "<!-- benchmarks/soak.py -->", "<!-- end of soak -->"
EVERY_SECONDS = 2.0
SAMPLE_SECONDS = 10.0
WARM_UP = 1 / 3
"""Share of the time that is left out."""
GOAL_MIB_PER_HOUR = 5.0
FIGURES = ("stack", "phases", "floor", "loss")
TRAINING = """
import sys, threading, time, torch
from torch import nn
from vramscope import agent
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters())
agent.attach(model, run_id=sys.argv[1])
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.is_set():
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""


@dataclass
class Process:
    """What a process used, sample by sample."""

    pid: int
    hours: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def sample(self, began: float) -> None:
        """Read the present figures."""
        process = psutil.Process(self.pid)
        self.hours.append((time.monotonic() - began) / 3600)
        self.mib.append(process.memory_full_info().uss / (1 << 20))
        self.descriptors.append(process.num_fds())
        self.threads.append(process.num_threads())

    def figures(self) -> dict[str, float]:
        """Growth after the warm-up, and the range of descriptors and threads in the first and the last third of it."""
        first = int(len(self.hours) * WARM_UP)
        third = max(1, (len(self.hours) - first) // 3)
        found = {"mib": self.mib[-1], "growth_mib_per_hour": slope(self.hours[first:], self.mib[first:])}
        for name in ("descriptors", "threads"):
            values = getattr(self, name)
            found[f"{name}_before"] = max(values[first : first + third])
            found[f"{name}_after"] = max(values[-third:])
        return found


def slope(x: list[float], y: list[float]) -> float:
    """Median of the slopes between all pairs of points."""
    across, up = np.subtract.outer(x, x), np.subtract.outer(y, y)
    later = across > 0
    return float(np.median(up[later] / across[later]))


async def short_run(url: str) -> None:
    """A run of one rank that sends three batches. It never says that it ends."""
    rank = Rank(url, new_run(), 0, 1)
    for _ in range(3):
        await rank.post(5, Sent())
    rank.close()


def ask_pages(http: httpx.Client, run: str, last: int) -> int:
    """What the pages of a list, a run and its leaks ask for."""
    paths = ["/runs?limit=100", f"/runs/{run}", f"/runs/{run}/leaks", "/server", "/health"]
    for path in [*paths, *(f"/runs/{run}/figures/{name}" for name in FIGURES)]:
        http.get(path).raise_for_status()
    answer = http.get("/live/delta", params={"after": last, "runs": run})
    answer.raise_for_status()
    return int(answer.json()["last"])


def soak(minutes: float) -> dict[str, Any]:
    """Run all of it for so long."""
    run = new_run()
    with Serving() as server, httpx.Client(base_url=f"{server.url}/api/v1", timeout=60, trust_env=False) as http:
        environment = {
            **os.environ,
            "VRAMSCOPE_SERVER": server.url,
            "VRAMSCOPE_SPOOL_DIR": str(server.folder / "spool"),
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, "-c", TRAINING, run]
        with subprocess.Popen(words, stdin=subprocess.PIPE, env=environment) as training:
            while http.get(f"/runs/{run}").status_code != 200:
                assert training.poll() is None, "the training ended"
                time.sleep(0.2)
            began, last, sampled, rounds = time.monotonic(), 0, 0.0, 0
            processes = {"server": Process(server.pid), "training": Process(training.pid)}
            while (now := time.monotonic()) < began + minutes * 60:
                asyncio.run(short_run(server.url))
                last = ask_pages(http, run, last)
                rounds += 1
                if now - sampled >= SAMPLE_SECONDS:
                    sampled = now
                    for one in processes.values():
                        one.sample(began)
                time.sleep(EVERY_SECONDS)
            steps = http.get(f"/runs/{run}").json()["steps"]
            assert training.stdin is not None
            training.stdin.close()
            assert training.wait(60) == 0
            state = http.get(f"/runs/{run}").json()["state"]
    return {
        "minutes": minutes,
        "runs": rounds + 1,
        "page_requests": rounds * (6 + len(FIGURES)),
        "steps": steps,
        "state": state,
        **{name: one.figures() for name, one in processes.items()},
    }


def table(kept: dict[str, Any]) -> str:
    """Rows of Markdown."""
    rows = ["| | server | training | goal |", "|---|---|---|---|"]
    goal = f"{kept['goal_mib_per_hour']:g}"
    server, training = kept["server"], kept["training"]
    growth = [f"{round(one['growth_mib_per_hour'])}" for one in (server, training)]
    rows.append(f"| memory at the end, MiB | {server['mib']:.0f} | {training['mib']:.0f} | |")
    rows.append(f"| growth after a third of the time, MiB an hour | {growth[0]} | {growth[1]} | {goal} |")
    for name in ("descriptors", "threads"):
        ranges = [f"{one[name + '_before']}, {one[name + '_after']}" for one in (server, training)]
        rows.append(f"| {name}, before and at the end | {ranges[0]} | {ranges[1]} | no more |")
    words = f"{kept['minutes']:g} minutes, {kept['runs']:,} runs, {kept['page_requests']:,} page requests, {kept['steps']:,} steps"
    return f"{words}, load {kept['load']:.0f}:\n\n" + "\n".join(rows)


def page(text: str) -> str:
    """The page with the result that is kept."""
    new = f"{BEGIN}\n{table(json.loads(KEPT.read_text()))}\n{END}"
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: new, text, flags=re.DOTALL)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    arguments.add_argument("--minutes", type=float, default=60.0, help="duration")
    arguments.add_argument("--write", action="store_true", help="write the stored result into docs/attacks.md")
    given = arguments.parse_args()
    if given.write:
        PAGE.write_text(page(PAGE.read_text()))
        return
    result = {**soak(given.minutes), "goal_mib_per_hour": GOAL_MIB_PER_HOUR, "load": os.getloadavg()[0]}
    print(json.dumps(result, indent=2 if given.json else None))


if __name__ == "__main__":
    main()
