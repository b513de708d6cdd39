"""A detection that fails: what the others find is reported all the same."""

from __future__ import annotations

import pytest
import torch

from vramscope.guard import guard
from vramscope.techniques.detector import DETECTORS, each_guarded
from vramscope.techniques.detectors import quantization
from vramscope.techniques.observation import TrainingState, weight_of


def test_an_error_in_one_detection_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(training: TrainingState) -> str | None:
        raise RuntimeError("an engine of another version")

    def fine(training: TrainingState) -> str | None:
        return training.framework

    state = TrainingState(
        framework="loop", config={}, roots=[], known_roots=[], optimizers=[], observation=None, observed=0,
        with_cache_clear=0, step=3,
    )  # fmt: skip
    monkeypatch.setattr(guard, "raise_faults", False)
    before = guard.faults
    try:
        assert [find(state) for find in each_guarded(broken, fine)] == [None, "loop"]
        assert guard.faults == before + 1
    finally:
        guard.reset()


def test_all_detections_are_contained() -> None:
    assert all(hasattr(find, "__wrapped__") for find in DETECTORS)


def test_the_weight_of_a_torchscript_module_is_read() -> None:
    """Its parameters are no dict, and it has two sorts of modules: with a weight and without."""
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()))
    state = TrainingState(
        framework="loop", config={}, roots=[model], known_roots=[], optimizers=[], observation=None, observed=0,
        with_cache_clear=0, step=3,
    )  # fmt: skip
    assert [weight is not None for weight in map(weight_of, model.modules())] == [False, True, False]
    assert quantization.find(state) is None
