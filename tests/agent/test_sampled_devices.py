"""When a training counts as one on the CPU: before its first step by the build of PyTorch, then by what its steps used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from collector import Collector
from training import Arrived, run

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
    assert sampler._is_cpu_training(0) is is_cpu
    assert watched == ([(-1,)] if is_cpu else [])


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_training_of_a_build_for_another_device(monkeypatch: pytest.MonkeyPatch, is_missing: bool) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(module, "cuda_is_up", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: not is_missing)
    sampler = Sampler(interval_ms=100, clock=StepClock(), ring=Ring(100), on_devices=lambda devices: None)
    assert sampler._is_cpu_training(0) is is_missing


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


CPU_TRAINING = """
torch.cuda.init()
model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
agent.attach(model, name="cpu")
def train(device, steps):
    for _ in range(steps):
        model(torch.zeros(8, 64, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.1)
train("cpu", 6)
if LATER:
    model.cuda()
    train("cuda", 6)
agent.detach()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("later", [False, True])
def test_a_training_on_the_cpu_has_samples_where_cuda_was_initialized(
    collector: Collector, spool: Path, later: bool
) -> None:
    """The Trainer of Transformers does so with ``use_cpu=True``, too."""
    printed = run(CPU_TRAINING.replace("LATER", str(later)), collector, spool, loop=False)
    arrived = Arrived(collector)
    steps = {row["step"]: row["device"] for row in arrived.rows("steps")}
    sampled = {row["device"] for row in arrived.rows("samples")}
    assert sampled == ({-1, 0} if later else {-1})
    assert {steps[number] for number in range(1, 7)} == {-1}
    if later:
        assert steps[12] == 0
    else:
        assert "6 steps on the CPU" in printed
