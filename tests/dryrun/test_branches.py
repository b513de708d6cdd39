"""With which truth value a program goes on."""

from __future__ import annotations

import runpy
import sys

import pytest

from vramscope.dry_run.branches import Question, question_of


class Value:
    """Notes what is asked when its truth is asked for."""

    @property
    def real(self) -> Value:
        return self

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def __bool__(self) -> bool:
        self.asked.append(question_of(sys._getframe(1)))
        return self.asked[-1].expected is not False


def asked(tmp_path, code):
    """What a program asks of ``x``, at its first question."""
    path = tmp_path / "train.py"
    path.write_text(code)
    x = Value()
    runpy.run_path(str(path), {"x": x})
    return x.asked[0]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("if x:\n    raise ValueError", False),
        ("if not x:\n    raise ValueError", True),
        ("for i in [1]:\n    if x:\n        print(1)\n        continue", False),
        ("while True:\n    if not x:\n        pass\n    break", False),
        ("while True:\n    if 1 and x:\n        break\n    break", False),
        ("if x:\n    torch._assert(False, 'no boxes')", False),
        ("if x:\n    assert False", False),
        ("if x:\n    sys.exit(1)", False),
        ("if x:\n    print('small')", True),
        ("if x:\n    y = 1\nelse:\n    raise ValueError", True),
        ("while x:\n    break", True),
        ("assert x", True),
        ("y = 1 if x else 2", True),
        ("y = bool(x)", None),
        ("def f():\n    if x:\n        return 1\nf()", True),
        ("if (\n    1\n    and x\n):\n    raise ValueError", False),
    ],
)
def test_the_value_with_which_the_work_goes_on(tmp_path, code, expected):
    assert asked(tmp_path, code).expected is expected


@pytest.mark.parametrize(
    ("code", "is_check"),
    [
        ("if x:\n    y = 1\n    raise ValueError", True),
        ("assert x", True),
        ("if not bool(x):\n    raise ValueError", True),
        ("if any([bool(x) for _ in [1]]):\n    raise ValueError", True),
        ("def f(a): return a\nif not f(bool(x)):\n    raise ValueError", False),
        ("def f(a): return a\nassert f(a=[bool(x)])", False),
        ("import warnings\nif x:\n    warnings.warn('large')", True),
        ("if x:\n    print(1)\n    torch.warn('large')", False),
        (
            "import warnings\nif x:\n    s = 'large'\n    if s == 'small':\n        raise ValueError(s)\n    warnings.warn(s)",
            True,
        ),
        ("import warnings\nif x:\n    s = 'large'\n    warnings.warn(s)\nprint('s')", True),
        ("import warnings\ns = 0\nif x:\n    s = 'large'\n    warnings.warn(s)", False),
        ("import warnings\nif x:\n    if 1:\n        print(1)\n    warnings.warn('large')", False),
        ("while x:\n    break", False),
        ("y = 1 if x else 2", False),
        ("for i in [1]:\n    if x:\n        continue", False),
    ],
)
def test_a_check_is_a_condition_that_only_raises_or_warns(tmp_path, code, is_check):
    assert asked(tmp_path, code).is_check is is_check


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 knows the line only")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("a = 0\nif not a and x: raise ValueError", False),
        ("a = 1\nif not x and a: raise ValueError", True),
        ("a = 0\nif a or not x: raise ValueError", True),
        ("y = 1 if x else 2; assert not y == 3", True),
    ],
)
def test_of_several_operands_the_one_that_is_asked_counts(tmp_path, code, expected):
    assert asked(tmp_path, code).expected is expected


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 knows the line only")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(): return bool(x)\nif f(): raise ValueError", False),
        ("def f(): return not bool(x)\nif f(): raise ValueError", True),
        ("def f(): return not x\nif not f(): raise ValueError", False),
        ("def f():\n    y = bool(x)\n    return y\nfor _ in [1]:\n    if f(): continue", False),
        ("y = bool(x)\nfor _ in [1]:\n    if y: continue", False),
        ("def f():\n    y = not x\n    if y: raise ValueError\nf()", True),
        ("a = 1\ny = a and bool(x)\nif y: raise ValueError", False),
        ("y = bool(x)\nif y: print(1)\nfor _ in [1]:\n    if y: continue", None),
        ("y = bool(x)\nprint(y)", None),
        ("def f(): return [bool(x)]\nif f(): print(1)", None),
    ],
)
def test_a_returned_or_assigned_truth_value_is_that_of_its_condition(tmp_path, code, expected):
    assert asked(tmp_path, code).expected is expected


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 knows the line only")
@pytest.mark.parametrize(
    ("code", "question"),
    [
        ("def f(): return not x\nif f(): raise ValueError", Question("not f()", True, is_check=True)),
        ("y = not x\nif y: print(1)", Question("not y", False)),
    ],
)
def test_the_text_of_a_reversed_value_is_reversed_too(tmp_path, code, question):
    assert asked(tmp_path, code) == question


def test_the_text_is_that_of_the_operand(tmp_path):
    code = "import types\na = 1\nt = types.SimpleNamespace(isnan=lambda _: x)\nif (\n    a\n    and t.isnan(a)\n):\n    pass"
    assert asked(tmp_path, code).text == "t.isnan(a)"
    assert asked(tmp_path, "y = bool(x)").text.strip() == "y = bool(x)"


def test_an_operand_after_a_comparison_is_the_one_that_is_asked(tmp_path):
    """In Python 3.11 its jump has the position of the comparison."""
    lines = [
        "def f(a):",
        "    if (",
        "        not (a == 2 or (a is None and a))",
        "        and (a is None or x.real)",
        "    ):",
        "        return 1",
        "f(1)",
    ]
    assert asked(tmp_path, "\n".join(lines)).text == "x.real"


def test_code_without_a_file_says_nothing():
    x = Value()
    exec(compile("if x: pass", "<ipython-input-3>", "exec"), {"x": x})
    assert x.asked == [Question("", None)]
