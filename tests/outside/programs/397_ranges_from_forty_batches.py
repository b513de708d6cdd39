"""Quantisation-aware training: observers collect the activations of the first 40 batches, take their range, drop them, and only use the range from then on. Right: freed after the calibration. Pattern: histogram observers."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

BATCHES = 40


class Observed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.samples = []
        self.scale = None

    def forward(self, x):
        x = self.inner(x)
        if self.scale is None:
            self.samples.append(x.detach())
            if len(self.samples) == BATCHES:
                self.scale = torch.cat(self.samples).abs().amax().clamp(min=1e-3)
                self.samples = []
            return x
        return x + (torch.round(x / self.scale * 127) / 127 * self.scale - x).detach()


net = nn.Sequential(Observed(nn.Linear(64, 128)), nn.ReLU(), Observed(nn.Linear(128, 64))).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(120):
    x = torch.randn(256, 64, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
