"""Relative position biases are cached by the size of the image; there are twelve sizes, and the last appears late. Right: a finite set of keys."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(8)
SIZES = [(h, w) for h in (8, 12, 16) for w in (8, 12, 16, 20)]


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.slope = nn.Parameter(torch.zeros(1))
        self.cache = {}

    def distances(self, h, w, device):
        if (h, w) not in self.cache:
            ys, xs = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
            points = torch.stack([ys.flatten(), xs.flatten()], -1).float()
            self.cache[h, w] = torch.cdist(points, points)
        return self.cache[h, w]

    def forward(self, x, h, w):
        q, k, v = self.qkv(x).chunk(3, -1)
        score = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 - self.slope * self.distances(h, w, x.device)
        return score.softmax(-1) @ v


net = Attention(64).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(110):
    h, w = random.choice(SIZES[: 2 + step // 8])
    x = torch.randn(4, h * w, 64, device="cuda")
    loss = (net(x, h, w) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
