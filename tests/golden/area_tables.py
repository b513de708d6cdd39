"""Tables of the documents that scripts make: predictions under settings, categories and advice, predictions of techniques."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from files import Result

TESTS = Path(__file__).parents[1]
AREA = "tables"
TABLES = {
    "settings": ("whatif", "predictions_table"),
    "categories and advice": ("anatomy", "table"),
    "techniques": ("anatomy", "prediction_table"),
}
MADE_FOR = """
import sys, importlib
from pathlib import Path
if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    script = importlib.import_module(sys.argv[2])
    script.PAGE = Path(sys.argv[3])
    sys.argv = [sys.argv[2]]
    script.main()
"""
"""Runs a script of a table, which writes to another page than that of the documents."""


def printed(folder: str, script: str) -> str:
    with tempfile.TemporaryDirectory(prefix="tables-") as there:
        page, program = Path(there) / "page.md", Path(there) / "made_for.py"
        page.touch()
        program.write_text(MADE_FOR)
        done = subprocess.run(
            [sys.executable, str(program), str(TESTS / folder), script, str(page)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    return done.stdout


def read(text: str) -> tuple[dict[str, Any], list[str]]:
    """Rows by their first cell, those of one table after the other; and all other lines."""
    rows: dict[str, list[list[str]]] = {}
    others: list[str] = []
    heading = False
    for line in text.splitlines():
        if not line.startswith("|"):
            others += [line] if line.strip() else []
            heading = True
        elif heading or (not rows and not others):
            others.append(line)
            heading = False
        elif not re.fullmatch(r"[|\s-]+", line):
            first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows.setdefault(first, []).append(cells)
    return rows, others


def compute() -> dict[str, Result]:
    """Five minutes."""
    whole = Result()
    for name, (folder, script) in TABLES.items():
        whole.facts[name], whole.sentences[name] = read(printed(folder, script))
    return {AREA: whole}
