"""Whether a program depends on a number after it was returned or passed on."""

from __future__ import annotations

import importlib
import sys

import pytest

from vramscope.dry_run.read_use import is_read_length, is_used

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not report the expression")
STOPPER = """
class Stopper:
    def __init__(self):
        self.best, self.seen = 1.0, []
    def __call__(self, value):
        self.seen.append(value)
        return self.is_better(value)
    def is_better(self, value):
        return value < self.best
    def note(self, value):
        self.last = value
    def show(self, value):
        print(value)
"""
SHARED = """
class Trainer:
    def read(self, x):
        self.last = x.item()
    def stops(self):
        return self.last > 3
    def show(self, x):
        self.shown = x.item()
def main(x):
    Trainer().CALLED(x)
"""


class Number:
    """Notes how the program uses what is read from it."""

    def __init__(self) -> None:
        self.is_used: list[bool] = []
        self.is_length: list[bool] = []

    def item(self) -> float:
        self.is_used.append(is_used(sys._getframe(1)))
        self.is_length.append(is_read_length(sys._getframe(1)))
        return 0


def read_by(tmp_path, monkeypatch, code):
    """Run ``main(x)`` of a program, and return what it read."""
    (tmp_path / "training_of_test.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "training_of_test", raising=False)
    importlib.invalidate_caches()
    x = Number()
    importlib.import_module("training_of_test").main(x)
    monkeypatch.delitem(sys.modules, "training_of_test")
    return x


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): return x.item()\ndef main(x):\n    if f(x) < 3: pass",
        "def f(x): return x.item()\ndef main(x):\n    value = f(x)\n    if value < 3: pass",
        "def f(x):\n    value = x.item()\n    return {'loss': value}\ndef main(x):\n    found = f(x)\n    return found['loss'] < 3",
        "def f(x): return sum([x.item() for _ in range(2)])\ndef main(x): return f(x) > 1",
        "import torch\n@torch.no_grad()\ndef f(x): return x.item()\ndef main(x): return f(x) > 1",
        "def g(x): return x.item()\ndef f(x): return g(x) / 2\ndef main(x): return f(x) > 1",
        "def check(a, value):\n    if value > 3: pass\ndef main(x): check(1, x.item())",
        "def check(a, value):\n    if value > 3: pass\ndef main(x):\n    found = x.item()\n    check(value=found, a=1)",
        "def g(v): return v > 1\ndef f(v): g(v + 1)\ndef main(x): f(x.item())",
        STOPPER + "def main(x):\n    stop = Stopper()\n    stop(x.item())",
        STOPPER + "stop = Stopper()\ndef main(x):\n    value = x.item()\n    stop.is_better(value)",
        STOPPER + "def fit(x, stopper): stopper(x.item())\ndef main(x): fit(x, Stopper())",
        STOPPER + "def main(x):\n    for one in [Stopper()]: one.is_better(value=x.item())",
        "def f(x):\n    yield x.item()\ndef main(x):\n    for value in f(x):\n        if value > 3: pass",
        SHARED.replace("CALLED", "read"),
        "def main(x):\n    seen = []\n    seen.append(x.item())\n    if sum(seen) > 3: pass",
        "def main(x):\n    a = x.item()\n    b = 0.9 + a\n    c = b / 2\n    if c > 3: pass",
        "import math\ndef main(x):\n    h = [1]\n    if math.isfinite(h[int(x.item())]): pass",
    ],
)
def test_a_number_that_decides_elsewhere_is_used(tmp_path, monkeypatch, code):
    assert read_by(tmp_path, monkeypatch, code).is_used[0]


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): return x.item()\ndef main(x): print(f(x))",
        "def f(x, y): return x.item()\ndef main(x): print(f(x, [1, 2][:1]))",
        "def log(step, value):\n    if step > 1: print(value)\ndef main(x): log(2, x.item())",
        STOPPER + "def main(x):\n    stop = Stopper()\n    stop.note(x.item())",
        STOPPER + "def main(x):\n    stop = Stopper()\n    stop.show(x.item())",
        STOPPER + "def main(x):\n    for one in [Stopper()]: one.show(x.item())",
        STOPPER + "def main(x):\n    for one in [Stopper()]: print(x.item())",
        SHARED.replace("CALLED", "show"),
        "def main(x):\n    seen = []\n    seen.append(x.item())\n    print(sum(seen))",
        "def f(v): return f(v) if False else v\ndef main(x): f(x.item())",
        "def main(x): print(*[x.item()])",
    ],
)
def test_a_number_that_is_shown_elsewhere_is_not_used(tmp_path, monkeypatch, code):
    assert not read_by(tmp_path, monkeypatch, code).is_used[0]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(x): return int(x.item()) + 1\ndef main(x):\n    for _ in range(f(x)): pass", True),
        ("def f(x):\n    n = int(x.item())\n    return n\ndef main(x):\n    n = f(x)\n    return list(range(n))", True),
        ("def f(x): return 1, x.item()\ndef main(x):\n    n, loss = f(x)\n    return list(range(n))", False),
        ("def f(x): return x.item()\ndef main(x): print(f(x))", False),
    ],
)
def test_a_returned_number_may_be_a_length(tmp_path, monkeypatch, code, expected):
    assert read_by(tmp_path, monkeypatch, code).is_length[0] is expected
