"""Measures peaks of common models on this GPU, each in a process of its own. Comparing with the emulated GPU gives its error.

    python benchmarks/model_peaks.py [--out FILE] [NAME ...]
    python benchmarks/model_peaks.py --table     compares the stored results and writes the table into docs/accuracy.md

For each model: the allocated and reserved peak of three training steps, and what the process used outside PyTorch's reserved
memory. For some convolutions and matrix products: the bytes of the library's workspace. These are the peak minus the tensors,
whose sizes are known. Models of torchvision, timm and transformers are left out where the package is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from library_workspaces import convolutions, products  # beside this file
from model_trainings import TRAININGS  # beside this file

BEGIN, END = "<!-- benchmarks/model_peaks.py --table -->", "<!-- end -->"


def measure(name: str) -> dict[str, Any]:
    """Three steps of one model: the peaks of each, and what the process used beside them."""
    import torch

    free, total = torch.cuda.mem_get_info()
    torch.manual_seed(0)
    step = TRAININGS[name]()
    held = torch.cuda.memory_allocated()
    allocated, reserved = [], []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        allocated.append(torch.cuda.max_memory_allocated())
        reserved.append(torch.cuda.max_memory_reserved())
    left, _ = torch.cuda.mem_get_info()
    return {
        "weights_bytes": held,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "beside_reserved_bytes": free - left - torch.cuda.memory_reserved(),
        "total_bytes": total,
    }


def table() -> str:
    """Third step of each model: peaks on the real card, and the emulated GPU's difference."""
    results = Path(__file__).parent / "results"
    real, emulated = (
        json.loads((results / f"model_peaks_{name}_2026-11-27.json").read_text())["models"]
        for name in ("h100", "emulated")
    )
    lines = ["| model | allocated, GiB | emulated | reserved, GiB | emulated |", "|---|---|---|---|---|"]
    for name, row in real.items():
        cells = [name]
        for counter in ("peak_allocated_bytes", "peak_reserved_bytes"):
            there, here = row[counter][-1], emulated.get(name, {}).get(counter)
            cells += [f"{there / 2**30:.2f}", "no result" if here is None else f"{100 * (here[-1] / there - 1):+.2f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table() -> None:
    docs = Path(__file__).parent.parent / "docs" / "accuracy.md"
    before, _, rest = docs.read_text().partition(BEGIN)
    docs.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="models to measure; all by default")
    options.add_argument("--out", type=Path, help="file for the results")
    options.add_argument(
        "--workers",
        type=int,
        default=1,
        help="number of parallel processes; beside_reserved_bytes is right with one only",
    )
    options.add_argument(
        "--one", action="store_true", help="measure one model in this process, and print one line of JSON"
    )
    options.add_argument("--table", action="store_true", help="write the table into docs/accuracy.md")
    chosen = options.parse_args()
    if chosen.table:
        write_table()
        return
    parts: dict[str, Callable[[], Any]] = {"convolutions": convolutions, "products": products}
    names = chosen.names or [*TRAININGS, *parts]
    if chosen.one:
        print("RESULT " + json.dumps(parts[names[0]]() if names[0] in parts else measure(names[0])))
        return
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(chosen.workers) as workers:
        for name, result in zip(names, workers.map(alone, names), strict=True):
            found[name] = result
            print(f"{name}: {result if isinstance(result, dict) else f'{len(result)} rows'}", flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps(found, indent=1))


def alone(name: str) -> Any:
    """One part in a process of its own."""
    words = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "not ended after 100 s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1][7:]) if lines else {"error": done.stderr.strip().splitlines()[-1:]}


if __name__ == "__main__":
    main()
