"""Measures the server's memory with 100 stored and 16 live runs, while four readers watch and figures are drawn.

    python benchmarks/server_memory.py            # prints text
    python benchmarks/server_memory.py --json     # prints one JSON object

Goal: less than 250 MB of resident memory. RSS counts pages of libraries that other processes share. PSS divides them, and is
printed too. The floor is a Python process that has imported what the server needs and does nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from ingest import Sender, post
from serving import Serving

STORED, LIVE, READERS = 100, 16, 4
STORED_ROWS = 10_000
GOAL_MB = 250.0
FIGURES = ("stack", "fragmentation", "utilization", "host", "floor", "loss", "phases")
_FLOOR = """
import sys
import fastapi, uvicorn, sqlalchemy, numpy, zstandard, plotly.graph_objects as go
go.Figure(go.Scatter(x=[1], y=[1])).to_dict()
print("ready", flush=True)
sys.stdin.read()
"""


def memory_mb(pid: int) -> dict[str, float]:
    """RSS and PSS of a process in MB (millions of bytes)."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name.lower()] = int(value.split()[0]) * 1024 / 1e6
    return found


def floor_mb() -> dict[str, float]:
    """Memory of the imported libraries only."""
    with subprocess.Popen([sys.executable, "-c", _FLOOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as idle:
        assert idle.stdout is not None and idle.stdin is not None
        idle.stdout.readline()
        found = memory_mb(idle.pid)
        idle.stdin.close()
    return found


@contextlib.contextmanager
def reading(url: str, runs: list[str]) -> Iterator[None]:
    """Pages that poll live events, for as long as the block runs."""
    stop = threading.Event()

    def read() -> None:
        last = 0
        with contextlib.suppress(httpx.HTTPError), httpx.Client(base_url=f"{url}/api/v1", timeout=60) as client:
            while not stop.wait(0.7):
                answer = client.get("/live/delta", params={"after": last, "runs": ",".join(runs)})
                last = answer.json()["last"]

    threads = [threading.Thread(target=read, daemon=True) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join(15)


def measure(seconds: float) -> dict[str, Any]:
    """Memory at the start, with the runs stored, and the highest while 16 runs are live."""
    with Serving() as serving:
        host, port = serving.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        started = memory_mb(serving.pid)
        stored = []
        for number in range(STORED):
            sender = Sender(f"stored {number}", rows=1000, seed=number, cycle=10, start_ns=time.time_ns() - 10**12)
            for _ in range(STORED_ROWS // 1000):
                post(connection, sender.body())
            post(connection, sender.last())
            stored.append(sender.run)
        full = memory_mb(serving.pid)
        live = [Sender(f"live {number}", rows=2, seed=number, cycle=64) for number in range(LIVE)]
        highest = dict(full)
        asked = 0
        with (
            httpx.Client(base_url=f"{serving.url}/api/v1", timeout=60) as client,
            reading(serving.url, [s.run for s in live]),
        ):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                begin = time.monotonic()
                for sender in live:
                    post(connection, sender.body())
                run = stored[asked % STORED]
                client.get(f"/runs/{run}/figures/{FIGURES[asked % len(FIGURES)]}").raise_for_status()
                client.get("/runs").raise_for_status()
                asked += 1
                now = memory_mb(serving.pid)
                highest = {name: max(highest[name], now[name]) for name in highest}
                time.sleep(max(0.0, 0.2 - (time.monotonic() - begin)))
    return {"started_mb": started, "stored_mb": full, "highest_mb": highest, "figures_asked": asked}


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    arguments.add_argument("--seconds", type=float, default=30.0, help="seconds with 16 live runs")
    given = arguments.parse_args()
    result = {"python": platform.python_version(), "floor_mb": floor_mb(), **measure(given.seconds), "goal_mb": GOAL_MB}
    if given.json:
        print(json.dumps(result, indent=2))
        return
    words = {
        "floor_mb": "the imported libraries only",
        "started_mb": "the server after its start",
        "stored_mb": f"{STORED} runs of {STORED_ROWS:,} samples stored",
        "highest_mb": f"{LIVE} runs live, {READERS} readers, {result['figures_asked']} figures drawn (goal {GOAL_MB:.0f})",
    }
    for name, meaning in words.items():
        print(f"{result[name]['rss']:8.1f} MB RSS {result[name]['pss']:8.1f} MB PSS  {meaning}")


if __name__ == "__main__":
    main()
