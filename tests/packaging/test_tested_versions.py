"""The README's table of tested versions has every library that the docs call tested, in the same version."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.fixture(scope="module")
def table() -> list[list[str]]:
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| tested on "))
    end = next(at for at, line in enumerate(lines[start:], start) if not line.startswith("|"))
    return [cells(line) for line in lines[start:end]]


@pytest.fixture(scope="module")
def versions(table: list[list[str]]) -> dict[str, str]:
    listed = [one for row in table[2:] for cell in row[1:] for one in cell.split(", ")]
    return {name.lower(): version for name, _, version in (one.partition(" (")[0].rpartition(" ") for one in listed)}


def test_each_library_has_one_version_and_the_date_is_past(table: list[list[str]], versions: dict[str, str]) -> None:
    assert all(re.fullmatch(r"\d+(\.\d+){1,2}", version) for version in versions.values()), versions
    assert len(versions) == sum(cell.count(",") + 1 for row in table[2:] for cell in row[1:]), "one is listed twice"
    date = datetime.date.fromisoformat(table[0][0].removeprefix("tested on "))
    assert datetime.date(2026, 11, 1) < date <= datetime.date.today()


@pytest.mark.parametrize(("page", "column"), [("frameworks.md", "tested with"), ("trackers.md", "tested offline with")])
def test_a_page_names_the_same_versions(versions: dict[str, str], page: str, column: str) -> None:
    lines = (ROOT / "docs" / page).read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| ") and column in cells(line))
    seen = 0
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        row = cells(line)
        name, tested = row[0].partition(",")[0].removesuffix(" Fabric").lower(), row[cells(lines[start]).index(column)]
        version = re.search(r"\d+\.\d+", tested)
        if version is None:
            assert tested == "not tested" and name not in versions, line
        else:
            assert versions.get(name) == version[0], line
            seen += 1
    assert seen >= 6
