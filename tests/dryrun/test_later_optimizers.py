"""Optimizers that a program makes after the steps of a dry run."""

from __future__ import annotations

import sys

import pytest

from vramscope.dry_run.later_optimizers import later_optimizers, place_now

BEFORE = """import torch
from torch.optim import SGD, Adam
def make(p): return Adam(p)
def again(): make([]); again()
def make_and_step(p, step):
    noted(); q = SGD(p, 0.1)
    step()
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("step()\ntorch.optim.LBFGS([])", ["LBFGS of train.py:9"]),
        ("step()\nmake([])", ["Adam of train.py:3"]),
        ("step()\nagain()", ["Adam of train.py:3"]),
        ("if 0: SGD([])\nstep()", []),
        ("for epoch in range(2):\n    if epoch == 9: q = SGD([])\n    step()\n    break", ["SGD of train.py:9"]),
        ("for fold in range(2):\n    noted(); q = dict\n    step()\n    break", []),
        (
            "for fold in range(2):\n    if fold:\n        q = Adam([])\n    else:\n        noted()\n    step()\n    break",
            [],
        ),
        ("make_and_step([torch.zeros(1)], step)\nmake_and_step([torch.zeros(1)], step)", []),
        ("make_and_step([torch.zeros(1)], step)\nAdam([])", ["Adam of train.py:9"]),
        ("if 1:\n    noted()\n    step()\n    torch.optim.LBFGS([])", ["LBFGS of train.py:11"]),
        ("step()\nq = dict(Adam=1)\nunknown = q['Adam']", []),
    ],
)
def test_an_optimizer_behind_the_current_line_is_found(tmp_path, code, expected):
    path = tmp_path / "train.py"
    path.write_text(BEFORE + code)
    found: list[list[str]] = []
    made: set[tuple[str, int]] = set()

    def step():
        found.append(later_optimizers(made))
        raise StopIteration

    def noted():
        frame = sys._getframe(1)
        made.add((frame.f_code.co_filename, frame.f_lineno))

    names = {"step": step, "noted": noted, "__name__": "train"}
    with pytest.raises(StopIteration):
        exec(compile(path.read_text(), str(path), "exec"), names)
    assert found == [expected]


def test_the_line_of_the_program_is_that_of_its_innermost_function():
    assert place_now() == (__file__, sys._getframe().f_lineno)
