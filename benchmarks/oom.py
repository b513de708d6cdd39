"""Measures how soon after an out-of-memory error its page is available. The training has 100,000 live tensors.

    python benchmarks/oom.py [--tensors 100000] [--rounds 3] [--fresh] [--json]

Times are in seconds since just before the request that failed:
caught    Python caught the error, and the agent has written the record
console   the agent has printed its summary
listed    the server lists the record for the run
page      the server has answered the page
whole     the answer has all its parts, the replay included

With window, the error is in the second step, while a recording of the allocator history is open. All tensors were allocated in
it, so the answer replays it. --fresh starts a server for each error that has not compiled its machine code yet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "backend"), str(HERE.parent / "tests")]

from running import ServerProcess  # noqa: E402

TRAINING = """
import os, sys, time
import torch
from torch import nn
from vramscope import agent
agent.attach(run_id=os.environ["RUN"], project="out of memory")
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
def step():
    model(torch.empty(64, 512, device="cuda")).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
TENSORS = int(os.environ["TENSORS"])
if os.environ["WINDOW"] == "1":
    step()
    kept += [torch.empty(1000, device="cuda") for _ in range(TENSORS)]
else:
    for _ in range(30):
        step()
    kept += [torch.empty(1000, device="cuda") for _ in range(TENSORS)]
    time.sleep(2.0)  # (what was made so quickly is with the server by now)
x = model(torch.empty(64, 512, device="cuda"))
sys.stderr.write("asks\\n"); sys.stderr.flush()
try:
    y = torch.empty(1 << 38, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    sys.stderr.write("caught\\n"); sys.stderr.flush()
    raise
"""


def death(server: ServerProcess, folder: Path, *, tensors: int, window: bool) -> dict[str, tuple[float, float]]:
    """One training to its end: (seconds, CPU seconds of training and server together) since the request that failed."""
    run = uuid.uuid4().hex[:16]
    env = {
        "VRAMSCOPE_SPOOL_DIR": str(folder / f"spool-{run}"), "EMULATED_GPU_LEDGER": "private", "RUN": run,
        "TENSORS": str(tensors), "WINDOW": str(int(window)), "VRAMSCOPE_SERVER": server.url,
    }  # fmt: skip
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING], env={**os.environ, **env}, stderr=subprocess.PIPE, text=True
    )
    assert training.stderr is not None
    seen: list[str] = []
    at: dict[str, tuple[float, float]] = {}
    asks = threading.Event()

    def now(name: str) -> None:
        at[name] = (time.time(), cpu_seconds(training.pid) + cpu_seconds(server.process.pid))

    def listen() -> None:
        for line in training.stderr or ():
            seen.append(line)
            if line.startswith("vramscope: Details: ") and line.rstrip().endswith("/oom"):
                now("console")
            elif line.startswith(("asks", "caught")):
                now(line.strip())
                asks.set()

    listener = threading.Thread(target=listen)
    listener.start()
    assert asks.wait(120), seen
    with httpx.Client(base_url=f"{server.url}/api/v1", timeout=300, trust_env=False) as http:
        deadline = time.time() + 120
        while not (errors := http.get(f"/runs/{run}/oom").json().get("errors")):
            assert time.time() < deadline, seen
            time.sleep(0.05)
        now("listed")
        record = errors[0]["record"]
        answer: dict[str, Any] = http.get(f"/oom/{record}").raise_for_status().json()
        now("page")
        while answer.get("pending") or (window and answer["window"] is None):
            time.sleep(0.2)
            answer = http.get(f"/oom/{record}").raise_for_status().json()
        now("whole")
        http.get(f"/oom/{record}").raise_for_status()
        now("again")
    training.wait()
    listener.join()
    assert answer["cause"] and answer["pieces"]["blocks"] > tensors, answer
    assert (answer["window"] is not None) == window, answer["window"]
    before = at["asks"]
    return {name: (moment[0] - before[0], moment[1] - before[1]) for name, moment in at.items() if name != "asks"}


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process; 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=100_000, help="number of live tensors")
    parser.add_argument("--rounds", type=int, default=3, help="number of errors of each kind")
    parser.add_argument("--fresh", action="store_true", help="start a server without compiled code for each error")
    parser.add_argument("--json", action="store_true", help="print JSON, one line for each error")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        server = None
        for number in range(words.rounds):
            for window in (False, True):
                if words.fresh:
                    os.environ["NUMBA_CACHE_DIR"] = str(folder / f"code-{number}-{window}")
                if server is None or words.fresh:
                    server = ServerProcess(folder / f"server-{number}-{window}")
                found = death(server, folder, tensors=words.tensors, window=window)
                if words.fresh:
                    server.process.terminate()
                    server.process.wait()
                fields = {"window": window, "fresh": words.fresh, "load": round(os.getloadavg()[0], 1)}
                fields |= {name: [round(value, 2) for value in pair] for name, pair in found.items()}
                print(json.dumps(fields) if words.json else fields, flush=True)
        if server is not None and server.process.poll() is None:
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
