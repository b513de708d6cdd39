"""Student, teacher and an average of the student, all in 32 bits on one card: the third copy does not fit, before any step. Pattern: self-distillation."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["weights"], "mentions": [["weights", "model", "bf16", "half"]]}

# A model: 22 x 64 MiB = 1408 MiB. Two are 2816 MiB; the card has about 3570.
import copy

import torch
from torch import nn


def build():
    return nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(22)])


student = build().to("cuda")
teacher = build().to("cuda").requires_grad_(False)
average = copy.deepcopy(student).requires_grad_(False)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(10):
    x = torch.randn(16, 4096, device="cuda")
    loss = (student(x) - teacher(x)).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
