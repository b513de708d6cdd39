"""Makes every change of CASES from outside and in the code of its program, and writes RESULTS.md.

``python tests/dryrun/table.py [PROGRAM ...]`` runs all, or those programs; two dry runs for each row. ``--with fsdp_2`` runs the
cases with this change only, ``--table`` none.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from changed_programs import CASES, SCALAR_BYTES, dry_runs_in  # noqa: E402

RESULTS: Final = HERE / "changes.json"
PAGE: Final = HERE / "RESULTS.md"
HEAD: Final = """# Changes from outside against the same changes in the code

`vramscope dryrun --try` switches a change on from outside. Here the same change was also made in the code of ten programs
(`programs`), and both ran as dry runs. Peaks in bytes. `python tests/dryrun/table.py` makes this table.
"""


def run(programs: Sequence[str], change: str, found: dict[str, Any]) -> None:
    """Run the cases of some programs, and store each result as soon as it is there. ``change``: those with it only."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, dry_runs_in(Path(folder)) as dry_runs:
        for program in programs:
            for names in CASES[program]:
                if change and change not in names:
                    continue
                done = dry_runs.from_outside(program, *names)
                run: Any = None if done.verdict is None or done.state != "ran" else done.verdict.trial.run
                by_hand = dry_runs.by_hand(program, *names)
                found[f"{program} {' '.join(names)}"] = {
                    "outside": None if run is None else [run["peak_allocated_bytes"], run["peak_reserved_bytes"]],
                    "by_hand": [by_hand.allocated, by_hand.reserved],
                    "reason": "" if run is not None else f"{done.state}: {done.reason}",
                }
                print(program, *names, found[f"{program} {' '.join(names)}"], file=sys.stderr, flush=True)
                RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def page(found: Mapping[str, Any]) -> str:
    """Format the table, with the number of equal rows first."""
    rows, equal = [], 0
    for program, cases in CASES.items():
        for names in cases:
            result = found.get(f"{program} {' '.join(names)}")
            if result is None:
                rows.append(f"| {program} | {' + '.join(names)} | not run | | | |")
                continue
            outside, by_hand = result["outside"], result["by_hand"]
            equal += outside == by_hand
            cells = ["", ""] if outside is None else [f"{value:,}" for value in outside]
            rows.append(f"| {program} | {' + '.join(names)} | {' | '.join(cells)} | {_difference(result)} |")
    ran = sum("not run" not in row for row in rows)
    head = (
        f"{equal} of {ran} that were run are equal to the byte, allocated and reserved; {len(rows) - ran} were not run."
    )
    return "\n".join(
        [
            HEAD,
            head,
            "",
            "| program | change | allocated | reserved | in the code |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _difference(result: Mapping[str, Any]) -> str:
    if result["outside"] is None:
        return str(result["reason"])
    differences = [own - other for own, other in zip(result["by_hand"], result["outside"], strict=True)]
    if not any(differences):
        return "equal"
    text = f"{differences[0]:+,} allocated, {differences[1]:+,} reserved"
    return text + (": the division of the loss" if differences == [SCALAR_BYTES, 0] else "")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("programs", nargs="*", metavar="PROGRAM")
    options.add_argument("--table", action="store_true", help="only write the page")
    options.add_argument("--with", dest="change", default="", help="only cases with this change")
    chosen = options.parse_args()
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not chosen.table:
        run(chosen.programs or list(CASES), chosen.change, found)
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
