"""The notation of the fixes: what a mark does to the source, and which marks are refused."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from corpus import LOOPS
from marks import leak_marks, mended


def mend(source: str) -> str:
    return mended(textwrap.dedent(source)).strip()


def test_a_fix_beside_the_leak_replaces_the_line() -> None:
    assert mend("    losses.append(loss)  # <- leak; fix: losses.append(loss.item())") == "losses.append(loss.item())"


def test_nothing_as_a_fix_removes_the_line() -> None:
    assert mend("kept.append(x)  # <- leak; fix: (nothing)") == "pass"


def test_a_leak_without_a_fix_stays_as_it_is() -> None:
    line = "out = model(x)  # <- leak"
    assert mend(line) == line


def test_a_fix_elsewhere_replaces_its_line_or_fills_a_comments_place() -> None:
    source = """
    loss.backward(retain_graph=True)  # fix here: loss.backward()
    if True:
        # fix here: del logits
    """
    assert mend(source).splitlines() == ["loss.backward()", "if True:", "    del logits"]


def test_a_fix_over_takes_in_the_next_statement_and_no_more() -> None:
    source = """
    # fix over: with torch.no_grad():
    for x in loader:
        total += model(x)  # <- leak; fix: total += 1

        count += 1
    return total
    """
    assert mend(source).splitlines() == [
        "with torch.no_grad():",
        "    for x in loader:",
        "        total += 1",
        "",
        "        count += 1",
        "return total",
    ]


def test_a_mark_names_the_loop_it_lies_in_or_says_which(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("def one(device):\n    x = 1  # <- leak\n\n\ny = 2  # <- leak of one, two; fix: y = 3\n")
    assert [(mark.line, mark.loops) for mark in leak_marks(file)] == [(2, ("one",)), (5, ("one", "two"))]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1  # <- leak\n", "must say of which"),
        ("def one(device):\n    x = f(\n        1,  # <- leak\n    )\n", "a statement of one line"),
    ],
)
def test_a_mark_that_nobody_could_apply_is_refused(tmp_path: Path, source: str, expected: str) -> None:
    file = tmp_path / "a.py"
    file.write_text(source)
    with pytest.raises(ValueError, match=expected):
        leak_marks(file)


@pytest.mark.parametrize("path", sorted(LOOPS.glob("*.py")), ids=lambda path: path.stem)
def test_every_mended_file_is_python(path: Path) -> None:
    ast.parse(mended(path.read_text()))
