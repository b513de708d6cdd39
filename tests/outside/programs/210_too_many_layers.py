"""The weights alone do not fit: thirty layers of 256 MiB on a card of 6 GiB. Pattern: a model moved to a card that is too small for it."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["weights"]}

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False, device="meta") for _ in range(30)])
model = model.to_empty(device="cuda")
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = model(torch.randn(4, 8192, device="cuda")).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
