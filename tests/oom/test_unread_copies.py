"""A checkpoint that no later line reads is found, and one that is needed later is not."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch

from vramscope.oom.unread_copies import unread_copy

WEIGHTS = {"a.weight": torch.zeros(4, 4), "b.weight": torch.zeros(4, 4)}


def found(frame: FrameType, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Name of the variable that is found; the tensors count as if they were on a device."""
    monkeypatch.setattr("vramscope.oom.unread_copies.is_library", lambda file: file != "train.py")
    monkeypatch.setattr("vramscope.oom.unread_copies._is_on", lambda tensor, device: True)
    leak = unread_copy([frame], WEIGHTS, 0, 3)
    return None if leak is None else leak.name


LOAD = 'loaded = {"model": {name: torch.zeros(4, 4) for name in WEIGHTS}, "epoch": 2}'


class Model:
    loaded = 1

    def eval(self) -> None:
        """As a module's."""


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ([LOAD, 'start = loaded["epoch"]', "for step in range(start, 4):", "    check()"], "loaded"),
        ([LOAD, "model.eval()", "for step in range(2):", "    check()", "    model.loaded"], "loaded"),
        ([LOAD, "for step in range(2):", "    check()", "del loaded"], "loaded"),
        ([LOAD, "for step in range(2):", "    check()", 'loaded["model"]'], None),
        ([LOAD, "for step in range(2):", '    loaded["epoch"]', "    check()"], None),
        ([LOAD, "other = loaded", "for step in range(2):", "    check()"], None),
        ([LOAD, 'weights = loaded["model"]', "for step in range(2):", "    check()", "print(weights)"], None),
        ([LOAD, "def save():", "    return loaded", "for step in range(2):", "    check()"], None),
        ([LOAD, "for step in range(2):", "    check()", "print(locals())"], None),
        (['loaded = {"a.weight": torch.zeros(4, 4), "epoch": 2}', "check()"], None),
    ],
    ids=[
        "unread",
        "attributes",
        "deleted",
        "later",
        "in the loop",
        "alias",
        "inner dict",
        "function",
        "locals",
        "no copy",
    ],
)
@pytest.mark.parametrize("in_function", [False, True])
def test_a_copy_counts_if_no_later_line_reads_it(
    lines: list[str], name: str | None, in_function: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[str | None] = []

    def check() -> None:
        results.append(found(sys._getframe(1), monkeypatch))

    text = "\n".join(lines)
    if in_function:
        text = "def train():\n" + "\n".join(f"    {line}" for line in lines) + "\ntrain()"
    names: dict[str, Any] = {"torch": torch, "WEIGHTS": WEIGHTS, "check": check, "model": Model()}
    exec(compile(text, "train.py", "exec"), names)
    assert set(results) == {name}
