"""Figures of the attacks: kept while the tests run, and shown in docs/attacks.md.

ATTACK_FIGURES=tests/attack/figures.json python -m pytest -m slow tests/attack    # measures
python tests/attack/figures.py                                                   # writes the table of the docs
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEPT = HERE / "figures.json"
PAGE = HERE.parents[1] / "docs" / "attacks.md"
BEGIN, END = "<!-- tests/attack/figures.py -->", "<!-- end -->"


def keep(attack: str, **figures: int | float) -> None:
    """Keep the figures of an attack that was withstood, in the file that ATTACK_FIGURES names; else nowhere."""
    path = os.environ.get("ATTACK_FIGURES")
    if not path:
        return
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = json.loads(file.read() or "{}")
        kept[attack] = {**figures, "date": time.strftime("%Y-%m-%d")}
        file.truncate(0)
        file.write(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def table(kept: dict[str, dict[str, int | float | str]]) -> str:
    """Rows of Markdown: an attack, its figures in words, its date."""
    rows = ["| attack | figures | measured |", "|---|---|---|"]
    for attack, figures in sorted(kept.items()):
        words = ", ".join(
            f"{value:,} {name.replace('_', ' ')}"
            if isinstance(value, int)
            else f"{value:,.1f} {name.replace('_', ' ')}"
            for name, value in figures.items()
            if not isinstance(value, str)
        )
        rows.append(f"| {attack} | {words} | {figures['date']} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """The page with the table of the figures that are kept."""
    new = f"{BEGIN}\n{table(json.loads(KEPT.read_text()))}\n{END}"
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: new, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
