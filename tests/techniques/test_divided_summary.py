"""A summary that is divided over steps reports what a whole one does, and refers to no model between them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from vramscope.integrations import plain
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks
from vramscope.techniques import detector
from vramscope.techniques.detector import TechniqueDetector


def reports_of(monkeypatch: pytest.MonkeyPatch, slice_ns: int, steps: int) -> list[tuple[int, list[str]]]:
    """Step and techniques of each report of a training that accumulates gradients from step 3 on."""
    monkeypatch.setattr(detector, "SLICE_NS", slice_ns)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reports: list[Any] = []
    clock = StepClock()
    hooks = LoopHooks(clock)
    watch = TechniqueDetector(clock, hooks, report=reports.append)
    hooks.install()
    plain.connect(model, hooks)
    watch.begin("loop", {})
    try:
        for step in range(1, steps + 1):
            for _ in range(2 if step > 2 else 1):
                model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        hooks.remove()
    reference = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert reference() is None
    return [(one.step, sorted(technique.kind for technique in one.techniques)) for one in reports]


def test_a_divided_summary_reports_the_same_some_steps_later(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reports_of(monkeypatch, 1 << 62, 60)
    divided = reports_of(monkeypatch, -1, 60)
    assert divided[-1][1] == whole[-1][1] and "accumulation" in " ".join(whole[-1][1])
    assert divided[-1][0] > whole[-1][0]
    assert divided[:-1] == whole[:-1]


def test_the_end_of_the_session_completes_a_divided_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reports_of(monkeypatch, 1 << 62, 60)
    ended = reports_of(monkeypatch, -1, whole[-1][0] + 1)
    assert ended[-1] == (whole[-1][0] + 1, whole[-1][1])
