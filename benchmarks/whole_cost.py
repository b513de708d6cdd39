"""Measures the cost of the agent for whole trainings, each in a process of its own, and writes docs/cost.md.

    python benchmarks/whole_cost.py --out benchmarks/results/whole_cost.json     60 s each, ten rounds
    python benchmarks/whole_cost.py --rounds 2 --seconds 3 --loops mlp,layers    a small measurement
    python benchmarks/whole_cost.py --arms without,default --loops gan,ppo       two of the four arms
    python benchmarks/whole_cost.py --table                                      writes docs/cost.md from the stored results

In each round every loop runs without the agent, by default, with detail="every", and with the peak read and reset by hand in
each step, in random order. --seconds are processor time, so a busy machine measures as many steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "whole_cost.json"
DOCS = ROOT / "docs" / "cost.md"
OTHERS = ROOT / "benchmarks" / "results" / "whole_cost_others.json"
"""Results of the loops that RESULTS does not have."""
BEGIN, END = "<!-- benchmarks/whole_cost.py --table -->", "<!-- end -->"
BEGIN_OTHERS, END_OTHERS = "<!-- benchmarks/whole_cost.py --table, others -->", "<!-- end of others -->"
NAMES = {
    "mlp": "tiny MLP",
    "layers": "20 linear layers",
    "gpt2": "GPT-2 small",
    "trainer": "small Hugging Face Trainer",
    "ppo": "PPO, 8 environments",
    "gan": "DCGAN",
    "leaking": "20 layers that leak",
}
ARMS = ("without", "default", "every", "by_hand")
Row = dict[str, Any]


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    import httpx
    from serving import Serving  # beside this file

    rows: list[Row] = []
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        server = chosen.server or stack.enter_context(Serving()).url
        result = Path(folder, "result.json")
        environment = {**os.environ, "VRAMSCOPE_SERVER": server, "VRAMSCOPE_QUIET": "1",
                       "VRAMSCOPE_SPOOL_DIR": folder, "EMULATED_GPU_LEDGER": "private"}  # fmt: skip
        # An installed package has its bytecode. Where Python may not write it, each process would compile 300 files.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder, "bytecode"))
        first = [sys.executable, str(ROOT / "benchmarks" / "cost_process.py"), "mlp", "default", "0", str(result)]
        subprocess.run(first, env=environment, check=True)
        for number in range(chosen.rounds):
            for loop in chosen.loops.split(","):
                for arm in random.sample(chosen.arms, len(chosen.arms)):
                    words = [sys.executable, str(ROOT / "benchmarks" / "cost_process.py"), loop, arm]
                    load = os.getloadavg()[0]
                    subprocess.run([*words, str(chosen.seconds), str(result)], env=environment, check=True)
                    row: Row = {
                        "round": number,
                        "loop": loop,
                        "arm": arm,
                        "load": load,
                        **json.loads(result.read_text()),
                    }
                    if row["run"]:
                        answer = httpx.get(f"{server}/api/v1/runs/{row['run']}").json()
                        row["shown"] = (answer.get("agent_overhead") or {}).get("fraction")
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
    return {
        "date": date.today().isoformat(),
        "seconds": chosen.seconds,
        "rounds": chosen.rounds,
        "cores": os.cpu_count(),
        "load": [min(row["load"] for row in rows), max(row["load"] for row in rows)],
        "rows": rows,
    }


def pairs(rows: list[Row], loop: str, arm: str) -> Iterator[tuple[Row, Row]]:
    """Yield this arm's process and the one without the agent, of each round."""
    for row in rows:
        if row["loop"] == loop and row["arm"] == arm:
            beside = (one for one in rows if one["loop"] == loop and one["arm"] == "without")
            yield row, next(one for one in beside if one["round"] == row["round"])


def cell(values: list[float], form: str, goal: float | None = None) -> str:
    """Median, with the smallest and largest value; a median above the goal is marked."""
    if not values:
        return "not measured"
    middle = statistics.median(values)
    text = f"{middle:{form}} ({min(values):{form}} to {max(values):{form}})"
    return f"{text}, **missed**" if goal is not None and middle > goal else text


def of_pairs(rows: list[Row], loop: str, arm: str, value: Callable[[Row, Row], float]) -> list[float]:
    return [value(row, without) for row, without in pairs(rows, loop, arm)]


def ratio(row: Row, without: Row) -> float:
    return float(row["step_cpu"] / without["step_cpu"])


def table(found: dict[str, Any], elsewhere: Collection[str] = ()) -> str:
    """Return the tables of a measurement. ``elsewhere``: loops that another one has."""
    rows: list[Row] = found["rows"]
    loops = [loop for loop in NAMES if any(row["loop"] == loop for row in rows)]
    clean = [loop for loop in loops if loop != "leaking"]
    low, high = found["load"]
    is_busy = high > found["cores"] + 1  # the measured process and its server are part of the load

    def time_cell(values: list[float], form: str, goal: float | None = None) -> str:
        return cell(values, form, None if is_busy else goal)

    lines = [
        f"Measured on {found['date']} with the emulated GPU: {found['rounds']} rounds, {found['seconds']:g} s of processor time "
        f"each, {found['cores']} cores. The load was {low:.1f} to {high:.1f}. Each cell has the median, and the smallest and "
        "largest value.",
        *(("", "The machine was busy: times are not compared with their goals.") if is_busy else ()),
        *(("", found["note"]) if "note" in found else ()),
        "",
        "| processor time of a step, as a ratio to the same loop without the agent | default | every detail | peak by hand |",
        "|---|---|---|---|",
    ]
    for loop in clean:
        long = statistics.median(row["step_cpu"] for row in rows if row["loop"] == loop and row["arm"] == "without")
        goals = {"default": 1.02, "every": 1.10 if long >= 5000 else None, "by_hand": None}
        cells = [time_cell(of_pairs(rows, loop, arm, ratio), ".3f", goal) for arm, goal in goals.items()]
        lines.append(f"| {NAMES[loop]} | {' | '.join(cells)} |")
    lines += [
        "",
        "| by default | first 200 steps take longer by, s of processor time | longest step, ms: with / without | "
        "memory added, MiB | cost on the page minus the measured one, points |",
        "|---|---|---|---|---|",
    ]
    for loop in loops:
        first = of_pairs(rows, loop, "default", lambda row, other: row["first_cpu"] - 1.02 * other["first_cpu"])
        longest = [row["longest_ms"] for row, _ in pairs(rows, loop, "default")]
        beside = [other["longest_ms"] for _, other in pairs(rows, loop, "default")]
        memory = of_pairs(rows, loop, "default", lambda row, other: row["resident_mib"] - other["resident_mib"])
        shown = [
            100 * abs(row["shown"] - (ratio(row, other) - 1))
            for row, other in pairs(rows, loop, "default")
            if row.get("shown") is not None
        ]
        cells = [
            time_cell(first, ".2f", 0.3),
            f"{time_cell(longest, '.1f', 250 if loop == 'leaking' else 10)} / {cell(beside, '.1f')}",
            cell(memory, ".1f", 15),
            time_cell(shown, ".1f", 1),
        ]
        lines.append(f"| {NAMES[loop]} | {' | '.join(cells)} |")
    missing = [name for loop, name in NAMES.items() if loop not in loops and loop not in elsewhere]
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    return "\n".join(lines)


def write_table() -> None:
    """Replace the generated parts of the page."""
    text = DOCS.read_text()
    for (begin, end), generated in zip(((BEGIN, END), (BEGIN_OTHERS, END_OTHERS)), stored_tables(), strict=True):
        text = f"{text.split(begin)[0]}{begin}\n{generated}\n{end}{text.split(end)[1]}"
    DOCS.write_text(text)


def stored_tables() -> list[str]:
    """Return the tables of both stored measurements."""
    found = [json.loads(results.read_text()) for results in (RESULTS, OTHERS)]
    elsewhere = {row["loop"] for one in found for row in one["rows"]}
    return [table(one, elsewhere) for one in found]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10, help="number of rounds")
    options.add_argument("--seconds", type=float, default=60.0, help="processor time of each process")
    options.add_argument("--loops", default=",".join(NAMES), help="loops to run")
    options.add_argument(
        "--arms", type=lambda words: words.split(","), default=list(ARMS), help=f"arms to run, of {', '.join(ARMS)}"
    )
    options.add_argument("--server", help="address of a running server; by default one is started")
    options.add_argument("--out", type=Path, help="file for the results")
    options.add_argument("--table", action="store_true", help="write the tables into docs/cost.md")
    chosen = options.parse_args()
    if chosen.table:
        write_table()
        return
    found = run(chosen)
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
