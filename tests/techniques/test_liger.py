"""Liger's kernels in a training with the real library, on the CPU, where Triton's interpreter runs three of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300), pytest.mark.xdist_group("techniques")]

TRAINING = """
import json, sys
sys.path.append(f"{sys.prefix}/optimizers")
import torch
from torch import nn
from vramscope.guard import guard
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks
from vramscope.techniques.detector import TechniqueDetector

guard.raise_faults = True

def told(model, loss_of, config):
    heard = []
    clock = StepClock()
    hooks = LoopHooks(clock)
    watch = TechniqueDetector(clock, hooks, report=heard.append)
    hooks.install([model])
    watch.begin("huggingface", config)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.remove()
    kernels = [one for one in heard[-1].techniques if one.kind == "fused_kernels"]
    return [[one.chip, one.declared, one.observed] for one in kernels], [one.kind for one in heard[-1].findings]

from liger_kernel.transformers import LigerCrossEntropyLoss, LigerFusedLinearCrossEntropyLoss, liger_rotary_pos_emb

class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 8, bias=False)
        self.loss = LigerFusedLinearCrossEntropyLoss()

    def forward(self, x, labels):
        return self.loss(self.head.weight, self.body(x), labels)

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x, angles):
        queries, keys = liger_rotary_pos_emb(self.body(x), self.body(x), angles, angles)
        return (queries * keys).sum()

x, labels = torch.zeros(4, 16), torch.zeros(4, dtype=torch.long)
plain, cross_entropy = nn.CrossEntropyLoss(), LigerCrossEntropyLoss()
print(json.dumps({
    "fused": told(Fused(), lambda model: model(x, labels), {"use_liger_kernel": True}),
    "turned": told(Turned(), lambda model: model(torch.zeros(1, 2, 4, 8), torch.zeros(1, 4, 8)), {}),
    "beside": told(nn.Linear(16, 8), lambda model: cross_entropy(model(x), labels), {}),
    "in vain": told(nn.Linear(16, 8), lambda model: plain(model(x), labels), {"use_liger_kernel": True}),
    "none": told(nn.Linear(16, 8), lambda model: plain(model(x), labels), {}),
}))
"""


def test_liger_kernels_and_a_declaration_without_effect(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    # (No warm process: Triton asks for its interpreter when it is imported, which torch does.)
    command = [sys.executable, "-c", TRAINING]
    done = subprocess.run(command, env=env, cwd=tmp_path, timeout=240, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    calls = "Liger kernel calls: "
    assert answer == {
        "fused": [[["Liger kernels", "use_liger_kernel=True", f"{calls}FusedLinearCrossEntropy 1"]], []],
        "turned": [[["Liger kernels", None, f"{calls}Rope 1"]], []],
        "beside": [[["Liger kernels", None, f"{calls}CrossEntropy 1"]], []],
        "in vain": [[["Liger kernels", "use_liger_kernel=True", ""]], ["kernels-not-seen"]],
        "none": [[], []],
    }
