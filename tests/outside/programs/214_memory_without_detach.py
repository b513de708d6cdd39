"""A running memory vector is blended with each step's summary and is part of the graph; the error about a second backward was silenced with retain_graph=True. Pattern: the classic question about retain_graph."""
EXPECTED = {"kind": "leak", "holder": ["memory"], "growing": True}

import torch
from torch import nn


class WithMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(128, 512)
        self.out = nn.Linear(1024, 128)

    def forward(self, x, memory):
        h = torch.tanh(self.inp(x))
        memory = 0.9 * memory + 0.1 * h.mean(0)  # <- here
        return self.out(torch.cat([h, memory.expand_as(h)], 1)), memory  # <- here


model = WithMemory().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.0)
memory = torch.zeros(512, device="cuda")
for step in range(60):
    x = torch.randn(64, 128, device="cuda")
    y, memory = model(x, memory)  # <- here
    loss = (y - x).square().mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
