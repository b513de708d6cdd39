"""Takes a snapshot of 10 million events through a real server.

    python benchmarks/large_snapshot.py [--events 1000000] [--times 10]

The file repeats the real allocator's history of a training, as snapshots.py records it. All memory is freed between two
repetitions. The file is uploaded to a server of its own whose conversions may use 4 GB. It prints the seconds of the conversion,
the peak memory of its process, the times of GET /api/v1/runs during the conversion, and the time of each picture from a server
that has just started.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "backend"), str(HERE.parent / "tests")]

from running import ServerProcess  # noqa: E402
from snapshots import recorded  # noqa: E402

MEMORY_BYTES = 4_000_000_000
PAUSE_SECONDS = 0.05
PICTURES = {
    "timeline by line": "timeline?by=site", "timeline by category": "timeline?by=category", "strip": "strip",
    "flamegraph": "flame", "allocations one by one": "allocations?by=site", "map": "map", "size classes": "sizes",
    "events": "events", "events by text": "events?text=train",
}  # fmt: skip


def repeated(path: Path, times: int, folder: Path) -> Path:
    """The same history over and over in one file, and how it ended the last time."""
    with path.open("rb") as file:
        snapshot = pickle.load(file)
    (trace,) = [trace for trace in snapshot["device_traces"] if trace]
    span = trace[-1]["time_us"] - trace[0]["time_us"] + 1000
    back = list(given_back(trace))
    whole = folder / "repeated.pickle"
    with whole.open("wb") as file:
        # A list's items stand in its pickle as batches that end with APPENDS: batches of many pickles make one list.
        file.write(b"\x80\x02}(" + text("device_traces") + b"]]")
        for nth in range(times):
            later = [
                {**one, "time_us": one["time_us"] + nth * span} for one in [*trace, *(back if nth + 1 < times else [])]
            ]
            data = pickle.dumps(later, 2)
            assert data[:5] == b"\x80\x02]q\x00"
            file.write(data[5:-1])
            del later, data
        file.write(b"a" + text("segments") + pickle.dumps(snapshot["segments"], 2)[2:-1])
        file.write(text("allocator_settings") + pickle.dumps(snapshot["allocator_settings"], 2)[2:-1] + b"u.")
    return whole


def given_back(trace: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What it takes for nothing to be there after these events."""
    blocks: dict[int, dict[str, Any]] = {}
    segments: dict[int, dict[str, Any]] = {}
    for one in trace:
        if one["action"] == "alloc":
            blocks[one["addr"]] = one
        elif one["action"] == "free_requested":
            del blocks[one["addr"]]
        elif one["action"] == "segment_alloc":
            segments[one["addr"]] = one
        elif one["action"] == "segment_free":
            del segments[one["addr"]]
    last = trace[-1]["time_us"]
    for one in blocks.values():
        for action in ("free_requested", "free_completed"):
            yield {**one, "action": action, "time_us": last}
    for one in segments.values():
        yield {**one, "action": "segment_free", "time_us": last}


def text(word: str) -> bytes:
    """A string in a pickle."""
    return b"X" + len(word).to_bytes(4, "little") + word.encode()


class Watched:
    """How long a server takes to list its runs, asked over and over; and the most that a process of it took."""

    def __init__(self, url: str, server: int) -> None:
        self.seconds: list[float] = []
        self.most_bytes = 0
        self._url, self._server = url, server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not self._over.is_set():
                began = time.perf_counter()
                http.get(f"{self._url}/api/v1/runs").raise_for_status()
                self.seconds.append(time.perf_counter() - began)
                for child in Path(f"/proc/{self._server}/task").glob("*/children"):
                    for process in child.read_text().split():
                        self._look(Path(f"/proc/{process}"))
                time.sleep(PAUSE_SECONDS)

    def _look(self, process: Path) -> None:
        try:
            if b"vramscope_server.snapshot_conversion" not in (process / "cmdline").read_bytes():
                return
            lines = (process / "status").read_text().splitlines()
        except OSError:  # it has just ended
            return
        one = next((line for line in lines if line.startswith("VmHWM")), "VmHWM: 0 kB")
        self.most_bytes = max(self.most_bytes, int(one.split()[1]) * 1024)


def upload(server: ServerProcess, path: Path) -> dict[str, Any]:
    """Sends the file and waits until it is converted; prints what that took."""
    with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False, timeout=600) as http, path.open("rb") as file:
        watched = Watched(server.url, server.process.pid)
        began = time.perf_counter()
        row = http.post("/snapshots", content=file, params={"name": path.name}).raise_for_status().json()
        sent = time.perf_counter()
        asked = len(watched.seconds)
        while row["state"] in ("waiting", "converting"):
            time.sleep(0.2)
            row = http.get(f"/snapshots/{row['snapshot']}").json()
        done = time.perf_counter()
        watched.end()
    assert row["state"] == "ready", row["problem"]
    events = sum(device["events"] for device in row["devices"])
    taken, meanwhile = watched.most_bytes, sorted(watched.seconds[asked:])
    print(f"upload took {sent - began:.1f} s; conversion took {done - sent:.1f} s; {events:,} events")
    print(
        f"peak memory of the conversion: {taken / 1e6:,.0f} MB, {taken / events:.0f} bytes an event; "
        f"limit {MEMORY_BYTES / 1e6:,.0f} MB"
    )
    print(f"on the disk: {row['stored_bytes'] / 1e6:,.0f} MB, {row['stored_bytes'] / events:.0f} bytes an event")
    print(
        f"{len(meanwhile)} requests of GET /runs during the conversion: median {statistics.median(meanwhile) * 1e3:.1f} ms, "
        f"95th percentile {meanwhile[int(0.95 * len(meanwhile))] * 1e3:.1f}, worst {meanwhile[-1] * 1e3:.1f}; "
        f"during the upload, worst {max(watched.seconds[:asked] or [0]) * 1e3:.1f} ms"
    )
    return row


def opened(data: Path, row: dict[str, Any]) -> None:
    """Prints the time of each picture from a server that has just started and has compiled, and of the same picture again."""
    print(f"\n{'opened again':28}{'first, s':>10}{'again, s':>10}")
    for name, path in PICTURES.items():
        server = ServerProcess(data)
        try:
            with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False, timeout=600) as http:
                seconds = []
                for ident in ("small", "large", "large"):  # the small one brings the machine code into the process
                    address = f"/recordings/{row[ident]}/{path}"
                    began = time.perf_counter()
                    http.get(address).raise_for_status()
                    seconds.append(time.perf_counter() - began)
        finally:
            server.end()
        print(f"{name:28}{seconds[1]:10.2f}{seconds[2]:10.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the history that is repeated")
    parser.add_argument("--times", type=int, default=10, help="number of repetitions")
    words = parser.parse_args()
    os.environ["VRAMSCOPE_SNAPSHOT_MEMORY_BYTES"] = str(MEMORY_BYTES)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        small = recorded(20_000, folder).rename(folder / "small.pickle")
        path = repeated(recorded(words.events * 2 // 3, folder, 2 * words.events), words.times, folder)
        print(f"{path.stat().st_size / 1e6:,.0f} MB; load {os.getloadavg()[0]:.1f}")
        server = ServerProcess(folder / "data")
        try:
            brief = upload(server, small)  # compiles where that was never done
            row = upload(server, path)
        finally:
            server.end()
        idents = {"small": f"{brief['snapshot']}-0", "large": f"{row['snapshot']}-0"}
        opened(folder / "data", idents)
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
