"""Self-distillation copies the student on the GPU after some steps; there is no room for a second copy beside weights, gradients and moments. Pattern: mean teacher."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["weights"], "mentions": [["copy", "host", "16 bit", "bf16"]]}

import copy

import torch
from torch import nn

with torch.device("cuda"):
    student = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(19)])
opt = torch.optim.Adam(student.parameters(), lr=1e-4, foreach=False)
teacher = None
for step in range(12):
    if step == 6:
        teacher = copy.deepcopy(student)
    x = torch.randn(32, 4096, device="cuda")
    out = student(x)
    loss = out.square().mean() if teacher is None else (out - teacher(x).detach()).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=False)
