"""The tables of docs/attacks.md are those that the programs write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import figures
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "tests/attack/figures.py": "import figures; write = figures.page",
    "benchmarks/sizing.py": "import sizing; write = sizing.page",
    "benchmarks/soak.py": "import soak; write = soak.page",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_table_of_the_docs_is_up_to_date(program: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / Path(program).parent)!r}); {PROGRAMS[program]}; "
        f"text = open({str(figures.PAGE)!r}).read(); sys.exit(write(text) != text)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, f"run {program}"


def test_what_is_not_asked_for_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTACK_FIGURES", raising=False)
    before = figures.KEPT.read_text()
    figures.keep("kills", kills=3)
    assert figures.KEPT.read_text() == before
    monkeypatch.setenv("ATTACK_FIGURES", str(tmp_path / "figures.json"))
    figures.keep("kills", kills=3)
    figures.keep("crashes", crashes=1234)
    rows = figures.table(json.loads((tmp_path / "figures.json").read_text())).splitlines()
    assert rows[2].startswith("| crashes | 1,234 crashes |") and rows[3].startswith("| kills | 3 kills |")
