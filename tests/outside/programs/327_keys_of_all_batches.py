"""An attention layer made for generation concatenates its keys and values to those of before. In training nobody resets it, so two tensors become longer with each batch. 32 KiB a step for both. Pattern: key-value caches left on."""
EXPECTED = {"kind": "leak", "holder": ["keys", "values", "past"], "growing": True}

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.keys = self.values = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.keys is not None:
            k = torch.cat([self.keys, k], 1)
            v = torch.cat([self.values, v], 1)
        self.keys, self.values = k.detach(), v.detach()  # <- here
        return nn.functional.scaled_dot_product_attention(q, k, v)


net = nn.Sequential(nn.Linear(32, 32), Attention(32), nn.Linear(32, 32)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(100):
    x = torch.randn(8, 16, 32, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
