"""After every fourth step a new mask is put on a layer with register_parametrization; the masks of before stay below it and are all applied. 64 KiB each. Pattern: parametrizations that are stacked."""
EXPECTED = {"kind": "leak", "holder": ["parametrizations", "weight"], "growing": True}

import torch
from torch import nn
from torch.nn.utils import parametrize


class Mask(nn.Module):
    def __init__(self, like):
        super().__init__()
        self.register_buffer("mask", torch.ones_like(like))

    def forward(self, weight):
        return weight * self.mask


net = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(160):
    if step % 4 == 3:
        parametrize.register_parametrization(net[0], "weight", Mask(net[0].weight.detach()))  # <- here
    loss = nn.functional.cross_entropy(net(torch.randn(64, 128, device="cuda")), torch.zeros(64, dtype=torch.long, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
