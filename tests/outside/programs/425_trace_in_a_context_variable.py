"""Layers write the attention maps of a call into a context variable, a tuple that is made longer at each call. It is set back in tests only. 512 KiB a step. Pattern: tracing by contextvars."""
EXPECTED = {"kind": "leak", "holder": ["trace"], "growing": True, "bytes_per_step": 524_288, "raises_peak": True}

from contextvars import ContextVar

import torch
from torch import nn

trace = ContextVar("trace", default=())


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.mix(x).chunk(3, -1)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        trace.set((*trace.get(), weights.detach()))  # <- here
        return x + weights @ v


model = nn.Sequential(Attention(32), Attention(32)).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(80):
    x = torch.randn(16, 64, 32, device="cuda")
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(len(trace.get()))
