"""Measures how many values a second a server stores: 16 clients, and each batch is acknowledged after its commit.

    python benchmarks/ingest.py                # prints text
    python benchmarks/ingest.py --json         # prints one JSON object
    python benchmarks/ingest.py --no-trackio   # leaves out the comparison

Server and senders share the cores. A batch is 256 samples of all 19 columns of the stream `samples`: 4,864 values.
Goals: 2,000,000 values a second, at most 4 stored bytes a value, and ten times Trackio's server in the same run.
Trackio is installed from PyPI into a temporary virtual environment. Each of its requests has 256 entries of the same 19 numbers,
and uses its own HTTP endpoint. If Trackio cannot be installed, the result says so and has no ratio.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import platform
import secrets
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from serving import Serving

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series

CLIENTS = 16
ROWS = 256
VALUES = ROWS * len(series.SAMPLES)
TRACKIO_SETUP_SECONDS = 240
GOALS = {"values_per_second": 2_000_000, "bytes_per_value": 4.0, "times_trackio": 10.0}


def training_samples(rows: int, seed: int = 0) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """Samples as a training gives them, ten a second: a sawtooth with noise, ratchets, and what NVML reads."""
    rng = np.random.default_rng(seed)
    tick = np.arange(rows)
    phase = tick % 37 / 37
    noise = rng.integers(0, 40_000_000, rows)
    allocated = (3e9 + np.minimum(phase, 1 - phase) * 1e10 + noise).astype(np.int64) // 512 * 512
    reserved = (np.maximum.accumulate(allocated) + (1 << 30)) // (2 << 20) * (2 << 20)
    made = {
        "time_ns": tick * 100_000_000 + rng.normal(0, 200_000, rows).astype(np.int64),
        "step": tick // 4,
        "phase": tick % 37 // 8,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "active_bytes": allocated + rng.integers(0, 4, rows) * 512_000,
        "requested_bytes": allocated - rng.integers(0, 5_000_000, rows),
        "unusable_bytes": rng.integers(0, 90_000_000, rows) // 512 * 512,
        "inactive_split_bytes": rng.integers(0, 300_000_000, rows) // 512 * 512,
        "segments": 200 + tick // 500,
        "alloc_retries": np.zeros(rows),
        "ooms": np.zeros(rows),
        "device_used_bytes": reserved + 600_000_000,
        "process_device_bytes": reserved + 500_000_000,
        "gpu_utilization_percent": np.clip(rng.normal(90, 6, rows), 0, 100),
        "temperature_celsius": 60 + np.sin(tick / 300) * 5,
        "power_milliwatts": 300_000 + rng.normal(0, 20_000, rows),
        "process_rss_bytes": 4_000_000_000 + np.cumsum(rng.integers(-50, 55, rows)) * 4096,
        "host_used_bytes": 40_000_000_000 + np.cumsum(rng.integers(-5000, 5000, rows)) * 4096,
    }
    return {name: np.asarray(values).astype(np.int64) for name, values in made.items()}


class Sender:
    """One run's sender: batches of a training, as large as asked for."""

    def __init__(
        self, name: str, rows: int = ROWS, seed: int = 0, start_ns: int | None = None, cycle: int = 32
    ) -> None:
        self.run, self.session = secrets.token_hex(8), secrets.token_hex(8)
        self.rows = rows
        self.sequence = 0
        self.start_ns = start_ns if start_ns is not None else time.time_ns()
        samples = training_samples(rows * cycle, seed)
        self._times = samples["time_ns"]
        self._span = rows * cycle * 100_000_000
        self._parts = [
            {name: values[i * rows : (i + 1) * rows].tobytes() for name, values in samples.items()}
            for i in range(cycle)
        ]
        self._attached = wire_messages.Attached(
            project="benchmark", name=name, rank=0, world_size=1, host="here", pid=os.getpid(), start_ns=self.start_ns,
            framework="loop", python=platform.python_version(), torch="none", agent_version="benchmark",
            devices=[wire_messages.Device(index=0, name="a card", total_bytes=80 << 30)],
        )  # fmt: skip

    def body(self, *more: wire_messages.Message) -> bytes:
        """The next batch, encoded."""
        turn, part = divmod(self.sequence, len(self._parts))
        times = self._times[part * self.rows : (part + 1) * self.rows] + (self.start_ns + turn * self._span)
        columns = {**self._parts[part], "time_ns": times.tobytes()}
        block = wire_messages.Block(stream="samples", device=0, rows=self.rows, columns=columns)
        self.sequence += 1
        return self._encoded([*([self._attached] if self.sequence == 1 else []), block, *more])

    def last(self, *more: wire_messages.Message) -> bytes:
        """A batch that ends the run."""
        self.sequence += 1
        ended = wire_messages.Ended(time_ns=time.time_ns(), state="finished")
        return self._encoded([*([self._attached] if self.sequence == 1 else []), *more, ended])

    def _encoded(self, messages: list[Any]) -> bytes:
        return wire_messages.encode(
            wire_messages.Batch(
                wire=wire_messages.WIRE_VERSION, session=self.session, run=self.run, rank=0, sequence=self.sequence,
                sent_ns=time.time_ns(), messages=messages,
            )
        )  # fmt: skip


def post(connection: http.client.HTTPConnection, body: bytes) -> None:
    """POST one batch and wait for its acknowledgement."""
    connection.request("POST", "/api/v1/batches", body, {"Content-Type": wire_messages.CONTENT_TYPE})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise SystemExit(f"the server refused a batch: {answer.status} {text[:500]!r}")


def side_by_side(
    work: list[Callable[[threading.Event, list[float]], None]], seconds: float
) -> tuple[float, list[float]]:
    """Run each piece of work in a thread until the time is over: seconds that it took, and all latencies."""
    stop = threading.Event()
    latencies: list[list[float]] = [[] for _ in work]
    threads = [
        threading.Thread(target=one, args=(stop, kept), daemon=True) for one, kept in zip(work, latencies, strict=True)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(60)
    return time.perf_counter() - started, [latency for kept in latencies for latency in kept]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_ours(seconds: float) -> dict[str, Any]:
    """Values a second into our server, and what they take on disk once the small chunks are merged."""
    with Serving() as serving:
        host, port = serving.url.removeprefix("http://").split(":")
        senders = [Sender(f"client {i}", seed=i) for i in range(CLIENTS)]

        def work(sender: Sender) -> Callable[[threading.Event, list[float]], None]:
            def loop(stop: threading.Event, latencies: list[float]) -> None:
                connection = http.client.HTTPConnection(host, int(port), timeout=60)
                while not stop.is_set():
                    body = sender.body()
                    begin = time.perf_counter()
                    post(connection, body)
                    latencies.append(time.perf_counter() - begin)
                connection.close()

            return loop

        side_by_side([work(sender) for sender in senders], 1.0)  # warm
        before = cpu_seconds(serving.pid), time.process_time()
        took, latencies = side_by_side([work(sender) for sender in senders], seconds)
        used = cpu_seconds(serving.pid) - before[0], time.process_time() - before[1]
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        for sender in senders:
            post(connection, sender.last())
        stored = sum(sender.sequence - 1 for sender in senders) * VALUES
        size = _settled_bytes(serving.url)
    return {
        "values_per_second": len(latencies) * VALUES / took,
        "batches_per_second": len(latencies) / took,
        "latency_ms_median": statistics.median(latencies) * 1e3,
        "latency_ms_95": sorted(latencies)[int(len(latencies) * 0.95)] * 1e3,
        "bytes_per_value": size / stored,
        "server_cpu_ms_per_batch": used[0] / len(latencies) * 1e3,
        "sender_cpu_ms_per_batch": used[1] / len(latencies) * 1e3,
    }


def _settled_bytes(url: str) -> int:
    """Bytes of the database once merging has come to rest."""
    sizes: list[int] = []
    for _ in range(120):
        text = httpx.get(f"{url}/metrics").text
        waiting = float(text.split("\nvramscope_merges_waiting ")[1].split()[0])
        sizes.append(httpx.get(f"{url}/api/v1/server").json()["database"]["bytes"])
        if waiting == 0 and len(sizes) > 2 and sizes[-1] == sizes[-2] == sizes[-3]:
            break
        time.sleep(0.5)
    return sizes[-1]


# ---- Trackio ----

_TRACKIO_SERVER = """
import sys
import trackio
trackio.show(open_browser=False, block_thread=True, host="127.0.0.1", server_port=int(sys.argv[1]))
"""
_TRACKIO_TOKEN = "benchmark"


def measure_trackio(seconds: float) -> dict[str, Any]:
    """The same numbers into Trackio's server. Raises RuntimeError with the reason where it cannot be measured."""
    with tempfile.TemporaryDirectory(prefix="vramscope-trackio-", ignore_cleanup_errors=True) as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        _run([sys.executable, "-m", "venv", str(python.parent.parent)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "trackio"])
        return _trackio_server(python, Path(folder) / "data", seconds)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRACKIO_SETUP_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command[-3:])} took more than {TRACKIO_SETUP_SECONDS} s") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[-3:])} failed: {done.stderr.strip().splitlines()[-1:]}")


def _trackio_server(python: Path, folder: Path, seconds: float) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "TRACKIO_DIR": str(folder),
        "TRACKIO_WRITE_TOKEN": _TRACKIO_TOKEN,
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_OFFLINE": "1",
    }
    with (python.parent / "log").open("w") as log:
        server = subprocess.Popen(
            [str(python), "-c", _TRACKIO_SERVER, str(port)], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + 60
            while not _is_up(f"http://127.0.0.1:{port}/version"):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("its server did not start")
                time.sleep(0.2)
            work = [_trackio_client(port, i) for i in range(CLIENTS)]
            side_by_side(work, 1.0)
            before = _folder_bytes(folder), _trackio_rows(folder)
            took, latencies = side_by_side(work, seconds)
            rows = _trackio_rows(folder) - before[1]
            size = _folder_bytes(folder) - before[0]
        finally:
            server.terminate()
            server.wait(20)
    if rows < len(latencies) * ROWS:
        raise RuntimeError(f"it acknowledged {len(latencies) * ROWS} entries and stored {rows}")
    version = next((python.parent.parent / "lib").glob("python3*/site-packages/trackio-*.dist-info")).name.split("-")[1]
    return {
        "version": version.removesuffix(".dist"),
        "values_per_second": len(latencies) * VALUES / took,
        "latency_ms_median": statistics.median(latencies) * 1e3,
        "bytes_per_value": size / (rows * len(series.SAMPLES)),
    }


def _is_up(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _trackio_client(port: int, number: int) -> Callable[[threading.Event, list[float]], None]:
    samples = training_samples(ROWS, number)
    rows = [dict(zip(samples, map(int, row), strict=True)) for row in zip(*samples.values(), strict=True)]
    headers = {"Content-Type": "application/json", "X-Trackio-Write-Token": _TRACKIO_TOKEN}
    taken = itertools.count()

    def loop(stop: threading.Event, latencies: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while not stop.is_set():
            first = next(taken) * ROWS
            logs = [
                {"project": "benchmark", "run": f"client {number}", "metrics": row, "step": first + i}
                for i, row in enumerate(rows)
            ]
            body = msgspec.json.encode({"logs": logs, "hf_token": None})
            begin = time.perf_counter()
            connection.request("POST", "/api/bulk_log", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise SystemExit(f"Trackio refused a batch: {answer.status} {text[:300]!r}")
            latencies.append(time.perf_counter() - begin)
        connection.close()

    return loop


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _trackio_rows(folder: Path) -> int:
    count = 0
    for path in folder.rglob("*.db"):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            if connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'metrics'").fetchone()[0]:
                count += connection.execute("SELECT count(*) FROM metrics").fetchone()[0]
    return count


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    arguments.add_argument("--no-trackio", action="store_true", help="leave out the comparison with Trackio")
    arguments.add_argument("--trackio-python", type=Path, help="Python of an environment that has Trackio")
    arguments.add_argument("--seconds", type=float, default=8.0, help="seconds of each round")
    arguments.add_argument("--rounds", type=int, default=3, help="number of rounds")
    given = arguments.parse_args()
    rounds = [measure_ours(given.seconds) for _ in range(given.rounds)]
    result: dict[str, Any] = {
        "clients": CLIENTS,
        "rows_per_batch": ROWS,
        "columns": len(series.SAMPLES),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "ours": {name: statistics.median(one[name] for one in rounds) for name in rounds[0]},
        "best_values_per_second": max(one["values_per_second"] for one in rounds),
        "trackio": None,
        "goals": GOALS,
    }
    if not given.no_trackio:
        try:
            if given.trackio_python is not None:
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    theirs = _trackio_server(given.trackio_python, Path(folder), given.seconds)
            else:
                theirs = measure_trackio(given.seconds)
            result["trackio"] = theirs
            result["times_trackio"] = result["ours"]["values_per_second"] / theirs["values_per_second"]
        except (RuntimeError, OSError, http.client.HTTPException) as error:
            result["trackio_not_measured"] = str(error)
    if given.json:
        print(json.dumps(result, indent=2))
        return
    ours = result["ours"]
    print(
        f"{CLIENTS} clients, batches of {ROWS} samples x {len(series.SAMPLES)} columns, "
        f"{result['cores']} cores for server and senders"
    )
    print(f"  values a second      {ours['values_per_second']:12,.0f}   (goal {GOALS['values_per_second']:,})")
    print(
        f"  acknowledged after   {ours['latency_ms_median']:9.1f} ms median, {ours['latency_ms_95']:.1f} ms 95th percentile"
    )
    print(f"  bytes a value stored {ours['bytes_per_value']:12.2f}   (goal at most {GOALS['bytes_per_value']})")
    print(
        f"  CPU for a batch      server {ours['server_cpu_ms_per_batch']:.2f} ms, sender {ours['sender_cpu_ms_per_batch']:.2f} ms"
    )
    if result["trackio"]:
        theirs = result["trackio"]
        print(
            f"  Trackio {theirs['version']:12} {theirs['values_per_second']:12,.0f}   {theirs['bytes_per_value']:.1f} bytes a value"
        )
        print(f"  ratio to Trackio     {result['times_trackio']:12.1f}   (goal {GOALS['times_trackio']})")
    else:
        print(f"  Trackio              not measured: {result.get('trackio_not_measured', 'left out')}")


if __name__ == "__main__":
    main()
