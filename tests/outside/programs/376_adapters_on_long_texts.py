"""Adapters on a frozen model, long texts, attention written by hand: the scores of all heads do not fit. Pattern: eager attention."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["activations", "one_allocation"],
            "mentions": [["attention", "sequence", "batch", "rows", "checkpoint"]]}

# Scores of a layer: 2 x 8 x 4096 x 4096 x 4 bytes = 1 GiB, and as much after softmax: two for each of six layers.
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.down, self.up = nn.Linear(dim, 8, bias=False), nn.Linear(8, dim, bias=False)
        for weight in (*self.qkv.parameters(), *self.out.parameters()):
            weight.requires_grad_(False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, t, c)) + self.up(self.down(x))


model = nn.Sequential(*[Attention(256, 8) for _ in range(6)]).cuda()
opt = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
for step in range(10):
    x = torch.randn(2, 4096, 256, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
