"""In each step a hook that runs after a gradient is accumulated is put on the last weight, to mask rows by the batch; none is removed. 96 KiB a step. Pattern: register_post_accumulate_grad_hook in the loop."""
EXPECTED = {"kind": "leak", "holder": ["hook", "rows"], "growing": True}

import torch
from torch import nn


class Masked:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 384)).cuda()
        self.opt = torch.optim.Adam(self.net.parameters())

    def step(self, x):
        rows = (x.mean(0, keepdim=True).repeat(384, 2)[:, :64] > 0).float()

        def hook(weight):
            weight.grad.mul_(rows)

        self.net[2].weight.register_post_accumulate_grad_hook(hook)  # <- here
        loss = self.net(x).logsumexp(-1).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


masked = Masked()
for _ in range(72):
    masked.step(torch.randn(64, 48, device="cuda"))  # <- here
