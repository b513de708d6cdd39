"""With which truth value a program goes on."""

from __future__ import annotations

import re

import pytest

from vramscope.dry_run.branches import value_to_go_on


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("if x:\n    raise ValueError", False),
        ("if not x:\n    raise ValueError", True),
        ("for i in y:\n    if x:\n        print(1)\n        continue", False),
        ("while True:\n    if x:\n        break", False),
        ("if a and not x:\n    raise ValueError", False),
        ("if x:\n    torch._assert(False, 'no boxes')", False),
        ("if x:\n    assert False", False),
        ("if x:\n    sys.exit(1)", False),
        ("if x:\n    logger.error('small')", True),
        ("if x:\n    y = 1", True),
        ("if x:\n    y = 1\nelse:\n    raise ValueError", True),
        ("while x:\n    pass", True),
        ("while not x:\n    pass", False),
        ("assert x", True),
        ("y = 1 if x else 2", True),
        ("y = bool(x)", None),
    ],
)
def test_the_value_with_which_the_work_goes_on(tmp_path, code, expected):
    path = tmp_path / "train.py"
    path.write_text(code)
    line = next(number for number, text in enumerate(code.split("\n"), 1) if re.search(r"\bx\b", text))
    assert value_to_go_on(str(path), line) is expected


def test_a_test_over_several_lines(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("if (\n    a\n    and x\n):\n    raise ValueError\n")
    assert [value_to_go_on(str(path), line) for line in (2, 3)] == [False, False]


def test_a_file_that_is_no_python_says_nothing(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("if x")
    assert value_to_go_on(str(path), 1) is None
    assert value_to_go_on("<ipython-input-3>", 1) is None
