"""Activations for a plot are collected in a threading.local that nobody clears; the training runs in the main thread. Pattern: tracing utilities that keep state per thread."""
EXPECTED = {"kind": "leak", "holder": ["trace", "state", "local"], "growing": True}

import threading

import torch
import torch.nn.functional as F
from torch import nn

state = threading.local()


class Traced(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        y = self.inner(x)
        if not hasattr(state, "trace"):
            state.trace = []
        state.trace.append(y.detach())  # <- here
        return y


net = nn.Sequential(nn.Linear(128, 512), nn.GELU(), Traced(nn.Linear(512, 512)), nn.GELU(), nn.Linear(512, 20)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for step in range(60):
    x = torch.randn(256, 128, device="cuda")
    y = torch.randint(0, 20, (256,), device="cuda")
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
print("finished")
