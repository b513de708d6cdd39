"""Lets every staged death happen and writes the table of RESULTS.md: ``python tests/oom/table.py [WORDS]``.

With words only the deaths whose names hold one of them, those that were held out included ("" is in all), and nothing is
written. Exit code 1 where a verdict was wrong.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "backend")]

import staged  # noqa: E402
from deaths import DEATHS  # noqa: E402
from every_death import EVERY_DEATH  # noqa: E402
from running import RunningServer  # noqa: E402

DOCS = HERE / "RESULTS.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->"


def main() -> int:
    words = sys.argv[1:]
    chosen = [death for death in EVERY_DEATH if any(word in death.name for word in words)] if words else DEATHS
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder:
        server = RunningServer(Path(folder) / "server")
        for death in chosen:
            outcome = staged.staged(death, server.url, Path(folder))
            tried = outcome.tried
            wrong += bool(outcome.wrong)
            reported = "wrong: " + "; ".join(outcome.wrong)[:300] if outcome.wrong else "right"
            print(f"{death.name}: {reported}", flush=True)
            remedy = "–" if tried is None else tried["conf"] or tried["what"].partition(": ")[0]  # noqa: RUF001
            remedy = re.sub(r"[0-9a-f]{16}\.py", "train.py", re.sub(r"pid \d+", "pid N", remedy))
            rows.append(f"| {death.name} | {death.cause or '–'} | {reported} | {remedy} | {'yes' if tried else '–'} |")  # noqa: RUF001
        server.stop()
    if not words:
        made = (
            "| death | cause | verdict | first sure remedy | tried, and enough |\n|---|---|---|---|---|\n"
            + "\n".join(rows)
        )
        text = DOCS.read_text()
        before, rest = text.split(BEGIN)
        tried = sum(row.endswith("| yes |") for row in rows)
        line = f"{len(rows)} deaths, {wrong} of them judged wrong; {tried} remedies tried.\n\n"
        DOCS.write_text(f"{before}{BEGIN}{line}{made}\n{END}{rest.split(END)[1]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
