"""Measures how snapshot files are read, from the file to the first picture.

    python benchmarks/snapshots.py [FILE ...] [--events N] [--stacks N]

Without FILE it records one: the real allocator's history of a training on the emulated GPU, written by PyTorch's _dump_snapshot.
Each way to read the file runs in a process of its own. Results are seconds of CPU time, seconds of wall-clock time, and memory
beyond that of the imports. The same run measures the floor, which is pickle.load without the garbage collector, and PyTorch's own
_memory_viz.py trace_plot. The time in which a browser reads the page of trace_plot is not included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TRAININGS = Path(__file__).resolve().parent.parent / "tests" / "whatif"
RECORD = """
import itertools, sys
import torch, trainings
events, most, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.init()
torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=most)
for number, _ in enumerate(trainings.train_lengths(events)):
    if number % 20 == 19 and 2 * torch.cuda.memory_stats()["allocation.all.allocated"] > events:
        break
torch.cuda.memory._dump_snapshot(path)
"""
MEASURE = """
import json, resource, sys, time
{imports}
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
wall, cpu = time.perf_counter(), time.process_time()
path = sys.argv[1]
{work}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall, (peak - base) * 1024]))
"""
OURS = """
from pathlib import Path
import msgspec
import plotly.graph_objects as go
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.timeline.axis_spans import ruler
from vramscope_server.analysis.timeline.coarse_curve import coarse_curve
from vramscope_server.analysis.timeline.curve import allocation_curve
from vramscope_server.analysis.timeline.grouping import grouping_of
from vramscope_server.analysis.timeline.overview import overview
from vramscope_server.figures import timeline
def picture(trace):
    curve = allocation_curve(trace)
    made = overview(curve, grouping_of(trace, curve, "site"), -1, curve.end)
    return timeline.draw(made, ruler(trace, -1, curve.end)).to_json()
# what is compiled comes from the disk from the second time on; a training's first events bring it in
import pickle
row = {"action": "alloc", "size": 9, "stream": 0, "time_us": 1}
small = {"segments": [], "device_traces": [[{**row, "addr": 512 * n} for n in range(9)]]}
picture(read(pickle.dumps(small)).devices[0])
"""
CONVERSION = (
    OURS + "import shutil, tempfile\n"
    "from vramscope_server import snapshot_conversion as conversion\nconversion._print = lambda row: None\n"
)
WAYS = {
    "pickle.load, no collector (floor)": ("import gc, pickle; gc.disable()", "pickle.load(open(path, 'rb'))"),
    "read as columns": (OURS, "trace = read(Path(path)).devices[0]"),
    "read, coarse picture": (OURS, "trace = read(Path(path)).devices[0]; coarse_curve(trace)"),
    "read, lives, first picture": (OURS, "trace = read(Path(path)).devices[0]; picture(trace)"),
    "converted for good": (
        CONVERSION,
        "folder = Path(tempfile.mkdtemp()); shutil.copy(path, folder / 'file'); "
        "conversion.convert(folder / 'file', folder / 'columns', 8 << 30)",
    ),
    "opened again, first picture": (
        CONVERSION +
        "from vramscope_server.analysis.trace.column_store import load\n"
        "folder = Path(tempfile.mkdtemp()); shutil.copy(sys.argv[1], folder / 'file')\n"
        "conversion.convert(folder / 'file', folder / 'columns', 8 << 30)\n",
        "trace, *_ = load(folder / 'columns' / '0', folder / 'columns' / 'stacks'); picture(trace)",
    ),
    "opened again, flamegraph": (
        CONVERSION +
        "from vramscope_server.analysis.trace.column_store import load\n"
        "from vramscope_server.analysis.timeline.flamegraph import flame\n"
        "from vramscope_server.analysis.timeline.source_lines import sites_of\n"
        "folder = Path(tempfile.mkdtemp()); shutil.copy(sys.argv[1], folder / 'file')\n"
        "conversion.convert(folder / 'file', folder / 'columns', 8 << 30)\n",
        "trace, *_ = load(folder / 'columns' / '0', folder / 'columns' / 'stacks'); "
        "made = flame(trace, sites_of(trace), len(trace.events) - 1); assert len(made.boxes) <= 2000",
    ),
}  # fmt: skip


def recorded(events: int, folder: Path, most: int | None = None) -> Path:
    """Write a file of this number of events, the last ones, as PyTorch does. With room for ``most``: all of half as many more."""
    path = folder / "snapshot.pickle"
    environment = {**os.environ, "PYTHONPATH": str(TRAININGS), "EMULATED_GPU_LEDGER": "private"}
    subprocess.run(
        [sys.executable, "-c", RECORD, str(events), str(most or events), str(path)], check=True, env=environment
    )
    return path


def made(words: argparse.Namespace, folder: Path) -> Iterator[Path]:
    """The recorded one, and one in which each event has a stack, and a line, of its own."""
    yield recorded(words.events, folder)
    if words.stacks:
        sys.path.append(str(TRAININGS.parent / "backend"))
        from snapshot_maker import file_of_stacks

        path = folder / "stacks.pickle"
        path.write_bytes(file_of_stacks(words.stacks))
        yield path


def measured(imports: str, work: str, path: Path) -> tuple[float, float, float]:
    """CPU and wall clock seconds, and bytes."""
    words = [sys.executable, "-c", MEASURE.format(imports=imports, work=work), str(path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    cpu, wall, memory = json.loads(done.stdout.splitlines()[-1])
    return cpu, wall, memory


def memory_viz(path: Path, folder: Path) -> tuple[float, float, float, int]:
    """The same for PyTorch's own page, and the bytes of that page."""
    import importlib.util
    import resource
    import time

    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    script = Path(torch.origin).parent / "cuda" / "_memory_viz.py"
    page = folder / "trace.html"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, str(script), "trace_plot", str(path), "-o", str(page)], check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, after.ru_maxrss * 1024, page.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="snapshot files; two are made without one")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the recorded training")
    parser.add_argument(
        "--stacks", type=int, default=1_000_000, help="events of the file with different stacks; 0: no such file"
    )
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for path in words.files or made(words, folder):
            print(f"\n{path.name}, {path.stat().st_size / 1e6:.0f} MB")
            print(f"{'':36}{'CPU s':>8}{'wall s':>8}{'MB':>8}")
            for name, (imports, work) in WAYS.items():
                cpu, wall, memory = measured(imports, work, path)
                print(f"{name:36}{cpu:8.2f}{wall:8.2f}{memory / 1e6:8.0f}", flush=True)
            cpu, wall, memory, size = memory_viz(path, folder)
            print(
                f"{'_memory_viz.py trace_plot':36}{cpu:8.2f}{wall:8.2f}{memory / 1e6:8.0f}  and {size / 1e6:.0f} MB of HTML"
            )


if __name__ == "__main__":
    main()
