"""Measures answers over HTTP: a long series as 1,000 points, a list of 1,000 runs, and the first figures of an hour's run.

    python benchmarks/query.py            # prints text
    python benchmarks/query.py --json     # prints one JSON object

Goals: a series of 100,000 samples as 1,000 points in 23 ms, and a list of 1,000 runs in less than 200 ms. Each time is a median.
It is compared with the floor, which is the shortest answer that the same client gets from the same server. The first figures of
36,000 samples are requested from a server that has just started.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from ingest import Sender, post
from serving import Serving

from vramscope.protocol import messages

SERIES_ROWS = 100_000
HOUR_ROWS = 36_000
RUNS = 1000
FIGURES = ("stack", "fragmentation", "utilization", "host", "floor", "loss", "phases")
GOALS = {"series_ms": 23.0, "list_ms": 200.0}


def fill(url: str, rows: int, name: str) -> str:
    """Send an ended run with this number of samples, and return its id."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    sender = Sender(name, rows=1000, start_ns=time.time_ns() - rows * 100_000_000)
    for _ in range(rows // 1000):
        post(connection, sender.body())
    post(connection, sender.last())
    return sender.run


def fill_list(url: str, runs: int) -> None:
    """Send this number of short, ended runs."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    for number in range(runs):
        sender = Sender(f"run {number}", rows=16, start_ns=time.time_ns() - number * 10**9, cycle=1, seed=number)
        post(connection, sender.body(messages.Event(time_ns=time.time_ns(), kind="notice")))
        post(connection, sender.last())


def median_ms(work: Callable[[], object], times: int) -> float:
    """Median milliseconds of a call; the first one is not counted."""
    work()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1e3


def settle(url: str) -> None:
    """Wait until small chunks are merged."""
    for _ in range(100):
        if float(httpx.get(f"{url}/metrics").text.split("\nvramscope_merges_waiting ")[1].split()[0]) == 0:
            return
        time.sleep(0.2)


def measure(times: int) -> dict[str, Any]:
    """All figures of this benchmark, in milliseconds."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        with Serving() as serving:
            hour = fill(serving.url, HOUR_ROWS, "an hour")
            settle(serving.url)
            with sqlite3.connect(serving.folder / "vramscope.db") as source, sqlite3.connect(copy) as target:
                source.backup(target)
        with (
            Serving(VRAMSCOPE_DATABASE=str(copy)) as serving,
            httpx.Client(base_url=f"{serving.url}/api/v1", timeout=60) as client,
        ):
            begin = time.perf_counter()
            sizes = [len(client.get(f"/runs/{hour}/figures/{name}").raise_for_status().content) for name in FIGURES]
            result["first_figures_ms"] = (time.perf_counter() - begin) * 1e3
            result["figure_bytes"] = sum(sizes)
            result["figures_again_ms"] = median_ms(
                lambda: [client.get(f"/runs/{hour}/figures/{name}") for name in FIGURES], 5
            )
            long = fill(serving.url, SERIES_ROWS, "long")
            settle(serving.url)

            def series(names: str, **window: Any) -> Callable[[], object]:
                parameters = {"names": names, "points": 1000, **window}

                def work() -> object:
                    answer = client.get(f"/runs/{long}/series", params=parameters).raise_for_status().json()
                    assert window or (answer["rows"], len(answer["x_values"])) == (SERIES_ROWS, 1000)
                    return answer

                return work

            result["floor_ms"] = median_ms(lambda: client.get("/session").json(), times)
            result["series_ms"] = median_ms(series("allocated_bytes"), times)
            result["four_series_ms"] = median_ms(
                series("allocated_bytes,reserved_bytes,device_used_bytes,power_milliwatts"), times
            )
            result["series_by_step_ms"] = median_ms(series("allocated_bytes", x="step"), times)
            result["window_ms"] = median_ms(series("allocated_bytes", **{"from": 5000, "to": 5090}), times)
            fill_list(serving.url, RUNS)
            result["list_ms"] = median_ms(lambda: client.get("/runs", params={"limit": RUNS}).json(), times)
            result["first_page_ms"] = median_ms(lambda: client.get("/runs").json(), times)
            result["search_ms"] = median_ms(lambda: client.get("/runs", params={"query": "run 77"}).json(), times)
    return result


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    arguments.add_argument("--times", type=int, default=30, help="how often each request is measured")
    given = arguments.parse_args()
    measured = measure(given.times)
    floor = measured["floor_ms"]
    result = {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **measured,
        "series_times_floor": measured["series_ms"] / floor,
        "list_times_floor": measured["list_ms"] / floor,
        "goals": GOALS,
    }
    if given.json:
        print(json.dumps(result, indent=2))
        return
    words = {
        "floor_ms": "floor: the shortest answer",
        "series_ms": f"{SERIES_ROWS:,} samples as 1000 points (goal {GOALS['series_ms']:.0f})",
        "four_series_ms": "four such series at once",
        "series_by_step_ms": "the same over steps",
        "window_ms": "900 samples of it, not downsampled",
        "list_ms": f"{RUNS} runs listed (goal {GOALS['list_ms']:.0f})",
        "first_page_ms": "first page: 100 of them",
        "search_ms": "a search",
        "first_figures_ms": f"all {len(FIGURES)} figures of {HOUR_ROWS:,} samples, after the server started",
        "figures_again_ms": "the same again",
    }
    for name, meaning in words.items():
        print(f"{measured[name]:9.1f} ms  {measured[name] / floor:7.1f} x floor  {meaning}")


if __name__ == "__main__":
    main()
