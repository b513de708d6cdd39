"""Own attention writes all scores; one document has eight times the usual length. Pattern: quadratic memory of naive attention."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["activations"], "mentions": [["length", "shorter", "sequence", "scaled_dot_product"]]}

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.transpose(1, 2) / 16).softmax(-1)
        return x + self.out(weights @ v)


net = nn.Sequential(*[Block() for _ in range(6)]).cuda()
opt = torch.optim.Adam(net.parameters())
for length in [1024] * 12 + [8192]:
    x = torch.randn(4, length, 256, device="cuda")
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
