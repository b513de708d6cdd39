"""Techniques from ``agent.attach`` to the protocol: reported techniques, and unchanged trainings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from collector import Collector
from training import Arrived, run

from vramscope.protocol import messages

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180), pytest.mark.xdist_group("techniques")]

MODEL = """
from torch.utils.checkpoint import checkpoint
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().mean()
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters())
def train(steps):
    for _ in range(steps):
        model(torch.zeros(512, 512, device=device)).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def collector():
    with Collector() as collector:
        yield collector


def test_session_reports_techniques_and_an_evaluation_with_graphs(collector, tmp_path: Path) -> None:
    """The last message has all techniques, and the leak detector's finding on an evaluation without no_grad."""
    script = f"""{MODEL}
agent.attach(model)
train(6)
model.eval()
for _ in range(12):
    model(torch.zeros(512, 512, device=device))
train(2)
"""
    run(script, collector, tmp_path / "spool", loop=False)
    result = Arrived(collector).of(messages.Techniques)
    assert [message.step for message in result][:2] == [0, 2]
    last = result[-1]
    chips = {technique.kind: technique.chip for technique in last.techniques}
    assert chips == {"gradient_checkpointing": "checkpointing", "optimizer": "AdamW", "batch": "batch 512"}
    assert [finding.kind for finding in last.findings] == ["evaluation-with-graphs"]


@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_conflicting_allocator_settings_are_a_finding(collector, tmp_path: Path, variable: str) -> None:
    conf = "expandable_segments:True,max_split_size_mb:128"
    run("agent.attach(model)\ntrain(3)", collector, tmp_path / "spool", **{variable: conf})
    last = Arrived(collector).of(messages.Techniques)[-1]
    (allocator,) = (technique for technique in last.techniques if technique.kind == "allocator")
    assert (allocator.chip, allocator.declared, allocator.observed) == (
        "expandable_segments, max_split_size_mb:128",
        f"{variable}={conf}",
        conf,
    )
    assert [finding.kind for finding in last.findings] == ["split-and-expandable"]


@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_getAllocatorSettings"),
    reason="PyTorch before 2.13 does not say what is in force",
)
def test_settings_set_one_after_the_other_are_combined(collector, tmp_path: Path) -> None:
    """PyTorch keeps only the last text, but the settings of both, which conflict."""
    script = """
torch.zeros(1, device=device)
torch._C._accelerator_setAllocatorSettings("max_split_size_mb:128")
agent.attach(model)
train(3)
"""
    run(script, collector, tmp_path / "spool", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    arrived = Arrived(collector)
    both = "max_split_size_mb:128,expandable_segments:True"
    assert [message.allocator_settings for message in arrived.of(messages.Attached)] == [both]
    last = arrived.of(messages.Techniques)[-1]
    (allocator,) = (technique for technique in last.techniques if technique.kind == "allocator")
    assert (allocator.observed, allocator.declared) == (both, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert [finding.kind for finding in last.findings] == ["split-and-expandable"]


def test_disabled_techniques_report_and_hook_nothing(collector, tmp_path: Path) -> None:
    script = f"""{MODEL}
agent.attach(model, techniques=False)
train(6)
from vramscope.process.module_calls import module_calls
print("hooks", int(module_calls.listens_to_all))
"""
    output = run(script, collector, tmp_path / "spool", loop=False)
    assert "hooks 0" in output
    assert Arrived(collector).of(messages.Techniques) == []


def test_weights_are_bitwise_equal_with_and_without_detection(collector, tmp_path: Path) -> None:
    """On the CPU, which computes real values: dropout inside checkpoints, also of functions without a module. Two of five
    steps are observed."""
    functions = (
        "x = checkpoint(F.dropout, x, use_reentrant=False)\n"
        "        return checkpoint(lambda y: F.dropout(y, 0.1).square(), x, use_reentrant=True).mean()"
    )
    model = MODEL.replace("nn.ReLU()", "nn.Dropout(0.1)").replace("return x.square().mean()", functions)
    script = f"""
import hashlib, io
import torch.nn.functional as F
{model.replace(".to(device)", "").replace("device=device", "")}
def weights(watched):
    torch.manual_seed(0)
    global model, optimizer
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    session = agent.attach(model, techniques=watched)
    for _ in range(5):
        model(torch.randn(16, 512)).backward()
        optimizer.step()
        optimizer.zero_grad()
    agent.detach()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print("same", weights(True) == weights(False), weights(True) != hashlib.sha256(b"").hexdigest())
"""
    output = run(script, collector, tmp_path / "spool", loop=False, CUDA_VISIBLE_DEVICES="")
    assert "same True True" in output
