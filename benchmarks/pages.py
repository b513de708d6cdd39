"""Measures pages in a real Chromium: first chart of a long run, frames while live, and the time from a sample to its pixel.

    python benchmarks/pages.py            # prints text
    python benchmarks/pages.py --json     # prints one JSON object

Goals: the first chart of a run of 36,000 samples takes less than 1 s, and a change of its tab less than 0.3 s. A chart that is
drawn twice a second has no frame over 50 ms. Of the samples of 8 ranks at 10 Hz, 95 % are drawn within 1 s. Server, senders and
browser share the machine. The browser draws in software. Frames are counted with the samples of tests/pages/sender.py, which
sends every 200 ms. Then ranks.py trains with the agent in eight processes. The time from an allocation to its pixel is measured
there. Seconds named cpu are processor time of the page's main thread. On a busy machine they say more than wall-clock time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from page_browser import FIRST_DRAWS, WATCH, WATCH_ALLOCATED, WATCH_CHANGES, MainThread, Unwatched, close, new_page
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
SENDER = ROOT / "tests" / "pages" / "sender.py"
RANKS = ROOT / "benchmarks" / "ranks.py"
LONG_RUN = "0000000000036000"
TABS = ("leaks", "anatomy", "fragmentation", "operations", "oom")


def load_sender() -> Any:
    spec = importlib.util.spec_from_file_location("pages_sender", SENDER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, round(part * (len(values) - 1)))]


def start(arguments: list[str], log: Path | None = None, **environment: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT / "agent"), str(ROOT / "backend"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": path},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=None if log is None else log.open("w"),
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


def first_chart(url: str, repeats: int) -> dict[str, float]:
    """Seconds from asking for the page of a run of 36,000 samples to its first chart on the screen, with nothing cached."""
    firsts = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            browser = Unwatched(folder)
            time.sleep(2)  # what a browser does when it starts is not the page's
            browser.call("Page.enable")
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=FIRST_DRAWS)
            browser.call("Page.navigate", url=f"{url}/runs/{LONG_RUN}")
            deadline = time.monotonic() + 30
            while True:
                drawn = browser.evaluate("Object.values(window.firstDraws ?? {})") or []
                if drawn and None not in drawn:
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"charts were not drawn: {drawn}")
                time.sleep(0.1)
            browser.close()
        firsts.append(min(drawn) / 1000)
    return {
        "first_chart_seconds_median": statistics.median(firsts),
        "first_chart_seconds_max": max(firsts),
    }


def tab_changes(driver: Any, url: str) -> dict[str, Any]:
    """Seconds from a click on a tab of the run of 36,000 samples to the page's last change, the slowest tab of each kind."""
    page = new_page(driver)
    thread = MainThread(page)
    page.goto(f"{url}/runs/{LONG_RUN}")
    page.locator("vs-chart[data-draws]").first.wait_for()
    page.wait_for_timeout(3_000)
    result: dict[str, Any] = {"run_opened_cpu_seconds": thread.cpu_seconds()}
    page.evaluate(WATCH_CHANGES)
    changes, processor = {}, {}
    for tab in TABS:
        before = thread.cpu_seconds()
        page.locator(f"a[href='/runs/{LONG_RUN}/{tab}']").first.click()
        page.wait_for_timeout(1_500)
        changes[tab] = page.evaluate("(window.changed - window.clicked) / 1000")
        processor[tab] = thread.cpu_seconds() - before
    close(page)
    return result | {"tab_change_seconds": changes, "tab_change_cpu_seconds": processor}


def live(driver: Any, url: str, run: str, seconds: float) -> dict[str, Any]:
    """Frames and ages of samples on the page of a live run of 8 ranks."""
    page = new_page(driver)
    page.goto(f"{url}/runs/{run}")
    page.locator("vs-chart[data-figure=host]").scroll_into_view_if_needed()
    page.locator("vs-chart[data-figure=host][data-draws]").wait_for(timeout=20_000)
    page.wait_for_timeout(4_000)  # what a page does once at its start is not what it does while live
    thread = MainThread(page)
    page.evaluate(WATCH, "host")
    before = thread.cpu_seconds()
    page.wait_for_timeout(seconds * 1000)
    used = thread.cpu_seconds() - before
    seen = page.evaluate("(cancelAnimationFrame(window.watching), window.seen)")
    close(page)
    frames, ages = seen["frames"][1:], [drawn - moment for moment, _, drawn in seen["shown"]]
    if not ages:
        raise RuntimeError("no live sample reached the page")
    return {
        "frames": len(frames),
        "frames_over_50_ms": sum(frame > 50 for frame in frames),
        "live_cpu_fraction": used / seconds,
        "frame_ms_p99": percentile(frames, 0.99),
        "frame_ms_max": max(frames),
        "long_tasks": len(seen["tasks"]),
        "long_task_ms_max": max(seen["tasks"], default=0.0),
        "draw_ms_median": statistics.median(seen["drawMs"]),
        "draws_per_second_and_chart": {name: count / seconds for name, count in seen["draws"].items()},
        "samples": len(ages),
        "latency_seconds_p50": percentile(ages, 0.5),
        "latency_seconds_p95": percentile(ages, 0.95),
        "latency_seconds_max": max(ages),
    }


def allocator_to_pixel(driver: Any, url: str, ranks: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Seconds from the moment at which rank 0 of a real training allocates or frees a block, to the key figure that shows it."""
    file = folder / "moments.txt"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(RANKS), url]
    length = seconds + 120  # long enough for all ranks to start, and to read the page
    training = start(
        [*words, str(length), str(file)],
        folder / "ranks.log",
        EMULATED_GPU_DEVICES=str(ranks),
        EMULATED_GPU_LEDGER=str(folder / "ledger"),
        OMP_NUM_THREADS="1",
    )
    try:
        run = wait_for_run(url, "ranks", patience=180, ranks=ranks)
        page = new_page(driver)
        page.goto(f"{url}/runs/{run}")
        page.locator("vs-chart[data-figure=stack][data-draws]").wait_for(timeout=60_000)
        page.wait_for_timeout(15_000)  # the first scans and recordings of eight trainings that began at once
        page.evaluate(WATCH_ALLOCATED)
        began = time.time()
        page.wait_for_timeout(seconds * 1000)
        shown = page.evaluate("window.allocated")
        close(page)
    finally:
        stop(training)
    load = os.getloadavg()[0]
    moments = [one for line in file.read_text().split() if began <= (one := float(line)) < shown[-1][0] - 2]
    least = (max(value for _, value in shown) - min(value for _, value in shown)) / 2
    delays = []
    for moment, following in pairwise(moments):
        before = [value for drawn, value in shown if drawn < moment]
        # The first other level that the key figure shows behind the change and before the next one.
        seen = (
            drawn
            for drawn, value in shown
            if before and moment <= drawn < following and abs(value - before[-1]) > least
        )
        if (drawn := next(seen, None)) is not None:
            delays.append(drawn - moment)
    if len(delays) < len(moments) // 2:
        raise RuntimeError(f"only {len(delays)} of {len(moments)} changes were seen on the page")
    return {
        "allocator_to_pixel_changes": f"{len(delays)} of {len(moments)} seen",
        "allocator_to_pixel_load": load,
        "allocator_to_pixel_seconds_p50": percentile(delays, 0.5),
        "allocator_to_pixel_seconds_p95": percentile(delays, 0.95),
        "allocator_to_pixel_seconds_max": max(delays),
    }


def listing(driver: Any, url: str) -> dict[str, float]:
    """Seconds until the list of 1000 runs shows rows, and until all of them are there, sorted by a column."""
    page = new_page(driver)
    began = time.monotonic()
    page.goto(f"{url}/runs", wait_until="commit")
    page.locator("tbody tr").first.wait_for()
    shown = time.monotonic() - began
    began = time.monotonic()
    page.get_by_role("button", name="Peak allocated").click()
    page.get_by_text("1,0", exact=False).first.wait_for()
    while page.locator("tbody tr").count() < 1000:
        time.sleep(0.02)
    whole = time.monotonic() - began
    close(page)
    return {"list_of_1000_shown_seconds": shown, "list_of_1000_sorted_seconds": whole}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    arguments.add_argument("--repeats", type=int, default=5, help="how often the first chart is measured")
    arguments.add_argument("--seconds", type=float, default=30.0, help="seconds of each live measurement")
    arguments.add_argument("--ranks", type=int, default=8, help="ranks of the live run")
    given = arguments.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    sender = load_sender()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        server = start(["-m", "vramscope_server", "server", "--port", str(port)], VRAMSCOPE_DATA_DIR=folder)
        feeding: subprocess.Popen[bytes] | None = None
        try:
            wait_for(url, server)
            sender.hour(url)
            result: dict[str, Any] = {
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
                "browser": "headless Chromium, no GPU",
            }
            result |= first_chart(url, given.repeats)
            result |= tab_changes(driver, url)
            result["ranks"] = given.ranks
            # long enough to open the page and to read it
            feeding = start(
                [
                    str(SENDER),
                    "--server",
                    url,
                    "--ranks",
                    str(given.ranks),
                    "--seconds",
                    str(given.seconds + 60),
                    "live",
                ]
            )
            run = wait_for_run(url, "live")
            result |= live(driver, url, run, given.seconds)
            stop(feeding)
            result |= allocator_to_pixel(driver, url, given.ranks, given.seconds, Path(folder))
            sender.thousand(url)
            result |= listing(driver, url)
        finally:
            if feeding is not None and feeding.poll() is None:
                stop(feeding)
            stop(server)
    goals = {
        "first chart under 1 s": result["first_chart_seconds_max"] < 1,
        "change of a tab under 0.3 s": max(result["tab_change_seconds"].values()) < 0.3,
        "no frame over 50 ms": result["frames_over_50_ms"] == 0,
        "95 % of samples drawn under 1 s": result["latency_seconds_p95"] < 1,
        "95 % from the allocator to the pixel under 1 s": result["allocator_to_pixel_seconds_p95"] < 1,
    }
    result["goals"] = goals
    print(json.dumps(result, indent=2) if given.json else words(result))
    return 0 if all(goals.values()) else 1


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            if httpx.get(f"{url}/api/v1/health", trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the server did not start")
        time.sleep(0.1)


def wait_for_run(url: str, name: str, patience: float = 20, ranks: int = 1) -> str:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        for row in httpx.get(f"{url}/api/v1/runs?state=running", trust_env=False).json()["runs"]:
            if row["name"] == name and row["steps"]:
                run = str(row["run_id"])
                if len(httpx.get(f"{url}/api/v1/runs/{run}", trust_env=False).json()["ranks"]) >= ranks:
                    return run
        time.sleep(0.2)
    raise RuntimeError(f"the run {name!r} did not appear")


def words(result: dict[str, Any]) -> str:
    lines = []
    for name, value in result.items():
        if name == "goals":
            continue
        if isinstance(value, float):
            lines.append(f"{name:34} {value:.3f}")
        elif isinstance(value, dict):
            lines.append(f"{name:34} " + ", ".join(f"{key} {part:.2f}" for key, part in value.items()))
        else:
            lines.append(f"{name:34} {value}")
    lines += [f"{'met' if met else 'MISSED':12} {goal}" for goal, met in result["goals"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
