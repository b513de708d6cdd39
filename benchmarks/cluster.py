"""Measures how a server behaves for a cluster: posts a second by number of processes, many ranks, many live and many stored runs.

    python benchmarks/cluster.py                    prints text; takes about five minutes
    python benchmarks/cluster.py --json --seconds 5 prints one JSON object; the short form

Server, PostgreSQL, senders and the client of the pages share the cores of this machine. The senders speak the wire format without
a training, and send as often as the server asks. This file starts PostgreSQL with its default settings. Where PostgreSQL is not
installed, the result has no figures for it.
Goals: no row is dropped. The 95th percentile of pages is below 300 ms with 512 ranks in one run, and with 200 live runs. A list
of 10,000 stored runs takes at most 200 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import glob
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from serving import Serving
from wire_senders import COLUMNS, Rank, Sent

from vramscope_server.store.stored_rows import StoredRun
from vramscope_server.store.tables import runs

SENDERS = 32
ROWS = 8
RANKS = 512
LIVE_RUNS = 200
STORED_RUNS = 10_000
GOALS = {"page_ms_95": 300.0, "list_ms_95": 200.0, "dropped_rows": 0}


@contextlib.contextmanager
def postgresql() -> Iterator[str | None]:
    """URL of the databases of a cluster of our own, or None where PostgreSQL is not installed."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not found:
        yield None
        return
    programs = Path(found[-1])
    folder = Path(tempfile.mkdtemp(prefix="vramscope-benchmark-pg-"))
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        options |= {"user": "postgres", "group": "postgres", "extra_groups": []}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    initdb = [programs / "initdb", "-D", folder / "data", "-U", "vramscope", "-A", "trust", "-E", "UTF8"]
    subprocess.run(initdb, check=True, **options)
    place = ["-D", folder / "data", "-p", port, "-h", "127.0.0.1", "-k", folder]
    cluster = subprocess.Popen([programs / "postgres", *place], **options)
    try:
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", port]
        while subprocess.run(ready, **options).returncode:
            time.sleep(0.1)
        yield f"postgresql+psycopg://vramscope@127.0.0.1:{port}"
    finally:
        cluster.send_signal(signal.SIGINT)  # does not wait for connections
        cluster.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def serving(cluster: str | None, workers: int = 1) -> Iterator[tuple[Serving, str | None]]:
    """A server with SQLite, or with a new database of the cluster. Gives its URL, too."""
    url = None
    settings = {"VRAMSCOPE_WORKERS": str(workers)}
    if cluster is not None:
        name = f"b{secrets.token_hex(4)}"
        engine = sa.create_engine(f"{cluster}/postgres", isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        url = settings["VRAMSCOPE_DATABASE"] = f"{cluster}/{name}"
    with Serving(**settings) as server:
        time.sleep(1.0 * workers)  # all of them listen
        yield server, url


def new_run() -> str:
    """Identifier of a run."""
    return f"b{secrets.token_hex(5)}"


async def _saturate(url: str, seconds: float) -> tuple[Sent, float]:
    sent, ranks = Sent(), [Rank(url, new_run(), 0, 1) for _ in range(SENDERS)]

    async def loop(rank: Rank, until: float) -> None:
        while time.monotonic() < until:
            await rank.post(ROWS, sent)

    await asyncio.gather(*(rank.post(ROWS, Sent()) for rank in ranks))
    begin = time.monotonic()
    await asyncio.gather(*(loop(rank, begin + seconds) for rank in ranks))
    took = time.monotonic() - begin
    for rank in ranks:
        rank.close()
    return sent, took


def throughput(cluster: str | None, workers: int, seconds: float) -> dict[str, float]:
    """Posts, rows and values a second of senders that wait for nothing but the answer."""
    with serving(cluster, workers) as (server, _):
        sent, took = asyncio.run(_saturate(server.url, seconds))
    return {
        "posts_per_second": sent.posts / took,
        "rows_per_second": sent.rows / took,
        "values_per_second": sent.rows * COLUMNS / took,
        "ack_ms_95": _percentile_ms(sent.latencies),
        "refused": sent.refused,
    }


async def _live(url: str, ranks: list[Rank], seconds: float) -> Sent:
    sent = Sent()
    until = time.monotonic() + seconds
    await asyncio.gather(*(rank.run_at(1.0, until, sent) for rank in ranks))
    for rank in ranks:
        rank.close()
    return sent


def live(
    cluster: str | None, workers: int, seconds: float, *, in_one_run: int = 0, live_runs: int = 0
) -> dict[str, Any]:
    """Ranks that have one row a second, and a client that opens pages meanwhile."""
    with serving(cluster, workers) as (server, _):
        run = new_run()
        ranks = [Rank(server.url, run, rank, in_one_run) for rank in range(in_one_run)]
        ranks += [Rank(server.url, new_run(), 0, 1) for _ in range(live_runs)]
        command = [sys.executable, __file__, "--pages", server.url, ranks[0].run, str(seconds)]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        sent = asyncio.run(_live(server.url, ranks, seconds))
        pages = json.loads(client.communicate()[0])
        time.sleep(1)
        stored = sum(_stored_rows(server.url, name) for name in {rank.run for rank in ranks})
    return {
        "ranks": in_one_run or live_runs,
        "posts_per_second": sent.posts / seconds,
        "rows_sent": sent.rows,
        "dropped_rows": sent.rows - stored,
        "refused": sent.refused,
        "ack_ms_95": _percentile_ms(sent.latencies),
        "asked_to_send_every_seconds": statistics.median(rank.every_seconds for rank in ranks),
        **pages,
    }


def open_pages(url: str, run: str, seconds: float) -> dict[str, float]:
    """Requests of the list and of a run's page, repeatedly. Returns durations of each answer."""
    paths = [
        "/runs?limit=100",
        f"/runs/{run}",
        f"/runs/{run}/series?names=allocated_bytes&rank=0&points=1000",
        "/server",
    ]
    durations: dict[str, list[float]] = {path.split("?")[0].replace(run, "RUN"): [] for path in paths}
    with httpx.Client(base_url=f"{url}/api/v1", timeout=60, trust_env=False) as http:
        time.sleep(min(3.0, seconds / 3))
        last = http.get("/live/delta", params={"runs": run}).json()["last"]
        until = time.monotonic() + seconds - min(3.0, seconds / 3)
        durations["/live/delta"] = []
        while time.monotonic() < until:
            for path in [*paths, f"/live/delta?after={last}&runs={run}"]:
                begin = time.perf_counter()
                answer = http.get(path)
                durations[path.split("?")[0].replace(run, "RUN")].append(time.perf_counter() - begin)
                answer.raise_for_status()
            last = answer.json()["last"]
            time.sleep(0.2)
    every = [one for several in durations.values() for one in several]
    slowest = {path: round(_percentile_ms(several), 1) for path, several in durations.items()}
    return {"page_requests": len(every), "page_ms_95": _percentile_ms(every), "page_ms_95_by_path": slowest}  # type: ignore[dict-item]


def stored_list(cluster: str | None, count: int) -> dict[str, float]:
    """Durations of the first page of the list, and of a search in it, of many stored runs."""
    with serving(cluster) as (server, url):
        engine = sa.create_engine(url or f"sqlite:///{server.folder / 'vramscope.db'}")
        start_ns = time.time_ns() - count * 1_000_000_000
        rows = [
            StoredRun(
                key=1_000_000 + at, id=f"stored{at:06d}", project=f"p{at % 20}", name=f"run {at}", tags=["a", f"t{at % 9}"],
                config={f"name{i}": i for i in range(30)}, state="finished", started_ns=start_ns + at * 1_000_000_000,
                last_seen_ns=start_ns + at * 1_000_000_000, device="NVIDIA H100 80GB HBM3", steps=at,
                sparkline=list(range(40)), peak_allocated_bytes=at << 20,
            ).to_row()
            for at in range(count)
        ]  # fmt: skip
        with engine.begin() as connection:
            connection.execute(runs.insert(), rows)
        engine.dispose()
        found = {}
        with httpx.Client(base_url=f"{server.url}/api/v1", timeout=60, trust_env=False) as http:
            assert http.get("/runs").json()["total"] == count
            for name, path in {"list_ms_95": "/runs?limit=100", "search_ms_95": "/runs?limit=100&query=run+77"}.items():
                durations = []
                for _ in range(30):
                    begin = time.perf_counter()
                    http.get(path).raise_for_status()
                    durations.append(time.perf_counter() - begin)
                found[name] = _percentile_ms(durations)
    return {"stored_runs": count, **found}


def _stored_rows(url: str, run: str) -> int:
    """Samples of all ranks of a run."""
    total = 0
    with httpx.Client(base_url=f"{url}/api/v1", timeout=60, trust_env=False) as http:
        for rank in http.get(f"/runs/{run}").json()["ranks"]:
            parameters = {"names": "step", "rank": rank["rank"], "points": 10}
            total += http.get(f"/runs/{run}/series", params=parameters).json()["rows"]
    return total


def _percentile_ms(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)] * 1000 if seconds else float("nan")


def _take(result: dict[str, Any], part: str, figures: dict[str, Any]) -> None:
    """Add a part, with the load of the machine, and show it at once: the whole takes minutes."""
    result[part] = {**figures, "load": os.getloadavg()[0]}
    print(part, json.dumps(result[part]), file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    arguments.add_argument("--seconds", type=float, default=20.0, help="seconds of each part")
    arguments.add_argument("--ranks", type=int, default=RANKS, help="ranks of the large run")
    arguments.add_argument("--runs", type=int, default=LIVE_RUNS, help="number of live runs")
    arguments.add_argument("--stored", type=int, default=STORED_RUNS, help="number of stored runs")
    arguments.add_argument("--pages", nargs=3, metavar=("URL", "RUN", "SECONDS"), help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.pages:
        print(json.dumps(open_pages(given.pages[0], given.pages[1], float(given.pages[2]))))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and PostgreSQL end, too
    result: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "senders": SENDERS,
        "rows_per_post": ROWS,
        "columns": COLUMNS,
        "goals": GOALS,
    }
    with postgresql() as cluster:
        kinds: list[tuple[str, str | None, int]] = [("sqlite", None, 1)]
        if cluster is None:
            result["postgresql_not_measured"] = "PostgreSQL is not installed here"
        else:
            kinds += [(f"postgresql_{workers}", cluster, workers) for workers in (1, 2, 4)]
        for name, url, workers in kinds:
            _take(result, f"throughput_{name}", throughput(url, workers, given.seconds))
        for name, url, workers in kinds if cluster is None else [kinds[0], kinds[2]]:
            _take(result, f"one_run_{name}", live(url, workers, given.seconds, in_one_run=given.ranks))
            _take(result, f"live_runs_{name}", live(url, workers, given.seconds, live_runs=given.runs))
            _take(result, f"stored_{name}", stored_list(url, given.stored))
    result["load_after"] = os.getloadavg()[0]
    if given.json:
        print(json.dumps(result, indent=2))
        return
    for part, figures in result.items():
        if isinstance(figures, dict) and part != "goals":
            print(part)
            for name, value in figures.items():
                print(f"  {name:30} {value if not isinstance(value, float) else f'{value:,.1f}'}")
        else:
            print(f"{part:32} {figures}")


if __name__ == "__main__":
    main()
