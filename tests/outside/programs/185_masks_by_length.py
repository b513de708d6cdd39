"""Causal masks are cached by the length of the batch, rounded up to 32; longer texts come later in a curriculum, so that the last of sixteen masks is made near the end. Right: a finite set of keys."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(3)


class Causal(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, 3 * dim)
        self.masks = {}

    def mask(self, n, device):
        if n not in self.masks:
            self.masks[n] = torch.full((n, n), float("-inf"), device=device).triu(1)
        return self.masks[n]

    def forward(self, x):
        q, k, v = self.proj(x).chunk(3, -1)
        return ((q @ k.mT) / 8 + self.mask(x.shape[1], x.device)).softmax(-1) @ v


net = Causal(64).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(96):
    longest = 32 * (1 + step // 6)
    n = 32 * random.randint(max(1, longest // 64), longest // 32)
    x = torch.randn(4, n, 64, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
