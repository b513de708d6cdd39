"""Runs all outside programs, or those of one half, and writes RESULTS.md.

``python tests/outside/table.py``; ``--half odd`` prints those with odd numbers, with reasons, and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "backend"), str(HERE.parent)]

from running import RunningServer  # noqa: E402
from scores import PROGRAMS, SCORES, Judgement, Truth, is_even_half, run_and_judge  # noqa: E402

KINDS: Final = {"leak": "leaks", "innocent": "innocent programs", "oom": "out-of-memory errors"}


def judged(programs: Sequence[Path], at_once: int) -> list[Judgement]:
    """Run them, some at once, against one server."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = RunningServer(Path(folder) / "server")

        def one(program: Path) -> Judgement:
            truth = Truth.of(program)
            own = Path(folder) / program.stem
            own.mkdir()
            return run_and_judge(program, truth, server.url, own)

        with ThreadPoolExecutor(at_once) as pool:
            found = []
            for judgement in pool.map(one, programs):
                print(f"{judgement.score:7}{judgement.program}", file=sys.stderr, flush=True)
                found.append(judgement)
        server.stop()
    return found


def as_table(judgements: Sequence[Judgement], halves: dict[str, bool]) -> str:
    """One row for each kind and half."""
    lines = [f"| | half | {' | '.join(SCORES)} |", f"|---|---|{'---|' * len(SCORES)}"]
    for kind, words in KINDS.items():
        for half, is_even in halves.items():
            rows = [one for one in judgements if one.kind == kind and is_even_half(one.program) is is_even]
            counts = Counter(one.score for one in rows)
            lines.append(f"| {words} | {half} | {' | '.join(str(counts[score]) for score in SCORES)} |")
    return "\n".join(lines)


def main() -> None:
    """Print or write the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("odd", "even"))
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--first", type=int, default=0, help="programs from this number on")
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    programs = [
        program
        for program in PROGRAMS
        if options.only in program.stem
        and int(program.stem.partition("_")[0]) >= options.first
        and options.half in (None, "even" if is_even_half(program.name) else "odd")
    ]
    judgements = judged(programs, options.at_once)
    if options.half or options.only or options.first:
        for one in judgements:
            if one.score != "right":
                print(f"\n{one.score} {one.program} ({one.kind}): {one.why}")
        print(Counter(one.score for one in judgements))
        return
    table = as_table(judgements, {"used for fixes": False, "unseen": True})
    (HERE / "RESULTS.md").write_text(
        "# Scores of the outside programs\n\n"
        "`python tests/outside/table.py` writes this page. Emulated GPU; what the words mean stands in README.md.\n\n"
        f"{table}\n"
    )


if __name__ == "__main__":
    main()
