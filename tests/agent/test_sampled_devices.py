"""When a training counts as one on the CPU: before CUDA is initialised, by the build of PyTorch."""

from __future__ import annotations

import pytest
import torch

from vramscope.sampling import sampler as module
from vramscope.sampling.sampler import Sampler
from vramscope.steps.clock import StepClock
from vramscope.transport.ring import Ring


@pytest.mark.parametrize(
    ("cuda", "hip", "is_cpu"),
    [(None, None, True), ("13.0", None, False), (None, "6.4.43482", False)],
    ids=["CPU", "CUDA", "ROCm"],
)
def test_a_training_before_its_first_step(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None, is_cpu: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(module, "cuda_is_up", lambda: False)
    watched: list[tuple[int, ...]] = []
    clock = StepClock()
    sampler = Sampler(interval_ms=100, clock=clock, ring=Ring(100), on_devices=watched.append)
    assert sampler._is_cpu_training() is is_cpu
    assert watched == ([(-1,)] if is_cpu else [])


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_training_of_a_build_for_another_device(monkeypatch: pytest.MonkeyPatch, is_missing: bool) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(module, "cuda_is_up", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: not is_missing)
    sampler = Sampler(interval_ms=100, clock=StepClock(), ring=Ring(100), on_devices=lambda devices: None)
    assert sampler._is_cpu_training() is is_missing


def test_later_on_finished_steps_are_carried_less_often_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_S", 0.0)
    monkeypatch.setattr(module, "CARRY_EVERY_S", 3600.0)
    carried: list[int] = []
    clock = StepClock()
    sampler = Sampler(
        interval_ms=100,
        clock=clock,
        ring=Ring(100),
        on_devices=lambda devices: None,
        on_steps=lambda steps: carried.extend(step.number for step in steps),
    )
    for _ in range(3):
        clock.end_step()
        sampler._tick()
    assert carried == [1], "the others wait"
    assert [step.number for step in clock.finished.untaken()] == [2, 3]
    sampler.stop()
    assert carried == [1, 2, 3]
