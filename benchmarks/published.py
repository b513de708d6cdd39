"""Compares published memory figures of real GPUs with programs of the same shape on the emulated GPU.

    python benchmarks/published.py [--out FILE] [NAME ...]     runs all programs (or those named) and stores the results
    python benchmarks/published.py --table                     writes docs/published-figures.md from the stored results

Figures are in published_figures.py, their sources in published_sources.py, programs in published_programs/. Each program runs
in a process of its own, on the GPU that the source names. It uses no network, and weights are random.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from published_figure import Counter, Figure, Kind  # beside this file
from published_figures import figures
from published_programs import PROGRAMS, load_all  # beside this file
from published_sources import Source

from vramscope.protocol.number_format import amount, percent

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "published_emulated.json"
DOCS = ROOT / "docs" / "published-figures.md"
BEGIN, END = "<!-- benchmarks/published.py --table -->", "<!-- end -->"
LARGE = "with the largest workspaces of cuDNN"
"""End of the key of a second run, which convolutions have."""
NEAR = 0.02
"""Relative error up to which a figure counts as a hit, unless the printed digits are coarser."""
LONGEST_SECONDS = 280


def run_key(figure: Figure, *, has_large_workspaces: bool = False) -> str:
    """Name the run of a program: figures with one name share a run."""
    if has_large_workspaces:
        return f"{run_key(figure)} {LARGE}"
    parts = {"arguments": figure.arguments, "card": card_of(figure), "environment": dict(figure.environment)}
    return f"{figure.program} {json.dumps(parts, sort_keys=True)}"


def card_of(figure: Figure) -> str:
    return figure.source.emulated


def alone(figure: Figure, *, has_large_workspaces: bool = False) -> dict[str, Any]:
    """Run the program of a figure in a process of its own, on its card."""
    sys.path.insert(0, str(ROOT / "backend"))
    sys.path.insert(0, str(ROOT / "agent"))
    from vramscope_server.cli.dryrun.cards import CARDS

    card = next(card for card in CARDS if card.key == card_of(figure))
    environment = os.environ | dict(figure.environment)
    environment |= {
        "EMULATED_GPU_LEDGER": "private",
        "EMULATED_GPU_DEVICES": "2" if figure.program == "shared_optimizer" else "1",
        "EMULATED_GPU_NAME": card.name,
        "EMULATED_GPU_CAPABILITY": str(card.capability),
        "EMULATED_GPU_MULTIPROCESSORS": str(card.multiprocessors),
        "EMULATED_GPU_TOTAL_MEM": str(2**40),  # nothing is to fail here; the need is compared
        "OMP_NUM_THREADS": "1",
    }
    if has_large_workspaces:
        environment["EMULATED_GPU_CUDNN_WORKSPACE"] = "most"
    words = [sys.executable, __file__, "--one", figure.program, json.dumps(dict(figure.arguments))]
    begin = time.monotonic()
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not ended after {LONGEST_SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return {"bytes": json.loads(lines[-1][7:]), "seconds": round(time.monotonic() - begin, 1)}


def run_one(name: str, arguments: Mapping[str, Any]) -> None:
    """Run a program in this process."""
    load_all()
    print("RESULT " + json.dumps(PROGRAMS[name](**arguments)))


def run_all(names: Sequence[str], out: Path) -> None:
    """Run each program once, and add its results to the file."""
    import torch

    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"runs": {}}
    found["torch"] = torch.__version__
    found["gpu"] = "emulated"
    chosen = [figure for figure in figures() if not names or figure.program in names]
    wanted = {run_key(figure): (figure, False) for figure in chosen}
    for figure in chosen:
        if figure.kind is Kind.CONVOLUTION:
            wanted[run_key(figure, has_large_workspaces=True)] = (figure, True)
    for key, (figure, has_large_workspaces) in wanted.items():
        found["runs"][key] = alone(figure, has_large_workspaces=has_large_workspaces)
        print(f"{key}: {found['runs'][key]}", flush=True)
        out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def emulated(figure: Figure, runs: Mapping[str, Any], *, has_large_workspaces: bool = False) -> float | None:
    """Return the emulated bytes of a figure; None if its program gave no result."""
    values = runs.get(run_key(figure, has_large_workspaces=has_large_workspaces), {}).get("bytes")
    return None if values is None else float(values[figure.key])


def error_of(figure: Figure, value: float) -> float:
    return value / figure.published_bytes - 1


def is_hit(figure: Figure, value: float) -> bool:
    """Whether the emulated value is within 2 % or within the last printed digit."""
    return abs(value - figure.published_bytes) <= max(NEAR * figure.published_bytes, figure.digit_bytes / 2)


def range_mark(figure: Figure, low: float, runs: Mapping[str, Any]) -> str:
    """Say whether a figure of convolutions is in the range that a dry run states."""
    if figure.arguments.get("benchmark"):
        return "no upper bound is known"
    high = emulated(figure, runs, has_large_workspaces=True)
    if high is None:
        return "miss"
    tolerance = figure.digit_bytes / 2
    is_inside = low - tolerance <= figure.published_bytes <= high + tolerance
    return f"{'inside' if is_inside else 'outside'} the range to {amount(high)}"


def error_words(error: float) -> str:
    """Return an error without its sign. A small one is not shown as none."""
    return "< 0.1 %" if 0 < error < 0.0005 else percent(error)


def summary(chosen: Iterable[Figure], runs: Mapping[str, Any]) -> str:
    """Count and errors of some figures, as cells of a table."""
    listed = list(chosen)
    pairs = [(figure, value) for figure in listed if (value := emulated(figure, runs)) is not None]
    if not pairs:
        return f"{len(listed)} | 0 | unknown | unknown | unknown"
    errors = sorted(abs(error_of(figure, value)) for figure, value in pairs)
    hits = sum(is_hit(figure, value) for figure, value in pairs)
    sources = len({figure.source.key for figure in listed})
    return (
        f"{len(listed)} | {sources} | {error_words(statistics.median(errors))} | {hits} of {len(listed)} "
        f"| {error_words(errors[-1])}"
    )


def table(results: Mapping[str, Any]) -> str:
    """Format all figures, and their errors by kind of program."""
    runs, everything = results["runs"], list(figures())
    lines = ["| figures | number | sources | median error | within 2 % or the last digit | largest error |"]
    lines.append("|---|---|---|---|---|---|")
    torch_counters = [figure for figure in everything if figure.counter is not Counter.NVIDIA_SMI]
    groups = {
        "all": everything,
        "by PyTorch's counters, without convolutions": [f for f in torch_counters if f.kind is not Kind.CONVOLUTION],
        "of these: without a setting chosen afterwards": [
            f for f in torch_counters if f.kind is not Kind.CONVOLUTION and not f.fitted
        ],
    }
    groups |= {kind.value: [f for f in everything if f.kind is kind] for kind in Kind}
    groups["by nvidia-smi"] = [f for f in everything if f.counter is Counter.NVIDIA_SMI]
    lines += [f"| {name} | {summary(chosen, runs)} |" for name, chosen in groups.items()]
    lines += ["", "| source | what | published | emulated | error | |", "|---|---|---|---|---|---|"]
    for figure in everything:
        value = emulated(figure, runs)
        shown = [figure.source.key, figure.what, amount(figure.published_bytes)]
        if value is None:
            shown += ["no result", "", "miss"]
        else:
            marks = [figure.note] if figure.note else []
            if figure.kind is Kind.CONVOLUTION:
                marks.insert(0, range_mark(figure, value, runs))
            elif not is_hit(figure, value):
                marks.insert(0, "miss")
            shown += [amount(value), percent(error_of(figure, value), signed=True), "; ".join(marks)]
        lines.append(f"| {' | '.join(shown)} |")
    lines += ["", "| source | card | PyTorch | measures | settings of its version |", "|---|---|---|---|---|"]
    lines += [source_row(source, [f for f in everything if f.source == source]) for source in sources_of(everything)]
    return "\n".join(lines)


def sources_of(chosen: Iterable[Figure]) -> list[Source]:
    return list(dict.fromkeys(figure.source for figure in chosen))


def source_row(source: Source, its: Sequence[Figure]) -> str:
    counters = ", ".join(dict.fromkeys(figure.counter.value for figure in its))
    settings = next((figure.settings for figure in its if figure.settings), "")
    if settings and any(figure.fitted for figure in its):
        settings += " (chosen after a first difference)"
    name = f"[{source.key}]({source.url})" + (f" {source.note}" if source.note else "")
    return f"| {name} | {source.card} | {source.torch} | {counters} | {settings} |"


def write_table() -> None:
    """Replace the generated part of the page."""
    before, _, rest = DOCS.read_text().partition(BEGIN)
    made = table(json.loads(RESULTS.read_text()))
    DOCS.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help="programs to run; all by default")
    options.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    options.add_argument("--table", action="store_true", help="write the tables into docs/published-figures.md")
    options.add_argument(
        "--one",
        nargs=2,
        metavar=("PROGRAM", "ARGUMENTS"),
        help="run one program in this process, and print one line of JSON",
    )
    chosen = options.parse_args()
    if chosen.one:
        run_one(chosen.one[0], json.loads(chosen.one[1]))
    elif chosen.table:
        write_table()
    else:
        run_all(chosen.names, chosen.out)


if __name__ == "__main__":
    main()
