"""Measures time and memory of the simulator of the CUDA allocator: python benchmarks/simulator.py [--sweep]

Each figure is compared with a floor: numba reads the columns of the same program once and adds them.
--sweep measures only what the page requests: 16 settings, the smallest device for each, and the advice.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "backend"))

from window_maker import training

from vramscope_server.analysis.simulator.program import ALLOC, FREE, Program
from vramscope_server.analysis.simulator.replay import UNLIMITED, replay
from vramscope_server.analysis.simulator.settings import AllocatorSettings
from vramscope_server.analysis.simulator.versions import NEWEST
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.trace import Trace, layout_at
from vramscope_server.analysis.trace.types import Events
from vramscope_server.analysis.whatif.sweep import DEFAULT_SWEEP, sweep

EVENTS = 200_000
OPERATIONS = 1_000_000
CONFS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]
FIRST_CALL = """
import sys, time
sys.argv = ["x"]
from benchmark import program, replay, AllocatorSettings, NEWEST, UNLIMITED
small = program(1000, 50)
start = time.process_time()
replay(small, AllocatorSettings(), profile=NEWEST, device_bytes=UNLIMITED)
print(time.process_time() - start)
"""


def program(operations: int, most_live: int, seed: int = 0) -> Program:
    """Sizes from 64 B to 64 MiB, by their logarithm even; each free takes any of those that live."""
    luck = np.random.default_rng(seed)
    grows, sizes, which = luck.random(operations), 2 ** luck.uniform(6, 26, operations), luck.random(operations)
    op, item = np.zeros(operations, np.uint8), np.zeros(operations, np.int32)
    size = np.zeros(operations, np.int64)
    live: list[int] = []
    items = 0
    for i in range(operations):
        if not live or (len(live) < most_live and grows[i] < 0.52):
            op[i], item[i], size[i] = ALLOC, items, int(sizes[i])
            live.append(items)
            items += 1
        else:
            chosen = int(which[i] * len(live))
            live[chosen], live[-1] = live[-1], live[chosen]
            op[i], item[i] = FREE, live.pop()
    zeros = np.zeros(operations, np.int32)
    return Program(op, item, size, zeros, zeros, np.arange(operations))


@njit
def walk(op: Any, item: Any, size: Any) -> Any:
    """The floor: every operation is visited."""
    total = 0
    for i in range(op.shape[0]):
        total += size[i] if op[i] == ALLOC else -item[i]
    return total


def best_of(times: int, run: Callable[[], object]) -> float:
    """The least of some, in seconds of CPU time."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def first_call_seconds(cache: str) -> float:
    code = FIRST_CALL.replace("from benchmark", "from simulator")
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def trace(events: int) -> Trace:
    """A whole history of a training of varying lengths, twelve layers, as a window would hold it."""
    steps = 2
    while True:
        window = training(steps, 12)
        made = len(window.events["action"]) // 8
        if made >= events:
            break
        steps = steps * events // made + 1
    allocated = from_window(window)
    rows = {one.name: getattr(allocated.events, one.name)[:events] for one in fields(Events)}
    cut = replace(allocated, events=Events(**rows))
    return replace(cut, end=layout_at(replace(allocated), events - 1))


def measure_sweep() -> None:
    """Wall clock and memory of a sweep as the page asks for it; the trace's lives are there, as on the server."""
    confs = (*DEFAULT_SWEEP, "max_split_size_mb:1024")
    assert len(confs) == 16
    values = trace(EVENTS)
    assert len(values.events) == EVENTS
    tables = (values.events, values.lives, values.segment_lives)
    own = sum(getattr(table, one.name).nbytes for table in tables for one in fields(table) if one.name != "unended")
    sweep(trace(2_000), confs)  # compiled, or loaded from the disk
    start, cpu = time.perf_counter(), time.process_time()
    sweep(values, confs)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    again = replace(values)  # nothing is kept of it but what is passed on here
    vars(again).update(lives=values.lives, segment_lives=values.segment_lives)
    tracemalloc.start()
    result = sweep(again, confs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(result.rows) == 16 and result.residual.exact, result.residual.words
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    print(
        f"sweep of 16 settings over {EVENTS:,} events: {seconds:.1f} s on {cores} cores ({cpu:.1f} s of CPU, load {load:.1f}), "
        f"{peak / EVENTS:.0f} bytes an event, and {own / EVENTS:.0f} bytes an event for the trace; certainty of the rows: "
        f"{', '.join(sorted({row.prediction.certainty for row in result.rows}))}"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sweep", action="store_true", help="measure only the sweep over settings")
    if options.parse_args().sweep:
        measure_sweep()
        return
    with tempfile.TemporaryDirectory() as cache:
        print(f"first call, CPU time: {first_call_seconds(cache):.1f} s with compilation, ", end="", flush=True)
        print(f"{first_call_seconds(cache):.2f} s from the cache on disk")
    print(f"{OPERATIONS:,} operations, seconds of CPU time (in brackets, ratio to the floor):")
    for most_live in (300, 3_000, 20_000, 200_000):
        made = program(OPERATIONS, most_live)
        walk(made.op, made.item, made.size_bytes)
        floor = best_of(3, lambda made=made: walk(made.op, made.item, made.size_bytes))  # type: ignore[misc]
        seen = []
        for conf in CONFS:
            settings = AllocatorSettings.parse(conf)
            seconds = best_of(
                2,
                lambda made=made, settings=settings: replay(  # type: ignore[misc]
                    made, settings, profile=NEWEST, device_bytes=UNLIMITED
                ),
            )
            seen.append(f"{conf or 'default'} {seconds:.2f} ({seconds / floor:.0f}x)")
        print(f"  {most_live:>7,} live blocks at most: {', '.join(seen)}; floor {1000 * floor:.1f} ms")
    for most_live in (3_000, OPERATIONS):
        made = program(OPERATIONS, most_live)
        tracemalloc.start()
        replay(made, AllocatorSettings(), profile=NEWEST, device_bytes=UNLIMITED)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        own = sum(getattr(made, name).nbytes for name in ("op", "item", "size_bytes", "stream", "pool", "event"))
        print(
            f"  memory, {most_live:,} live blocks at most: {(peak + own) / OPERATIONS:.0f} bytes an operation, program included"
        )


if __name__ == "__main__":
    main()
