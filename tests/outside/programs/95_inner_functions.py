"""An attention layer with small inner helpers marked for later compilation: the marker remembers each helper with the frame it was defined in, to look names up when it is compiled; nothing is ever compiled, and each forward defines the helpers again, so frame after frame stays with all its local tensors. Source: https://github.com/pytorch/pytorch/pull/20563 - the multi-head attention leaked GPU memory after it had been split into inner functions; a maintainer traced it to the weak_script decorator, which captures the frame of the definition and with it the tensors."""
EXPECTED = {"kind": "leak", "holder": ["pending", "compile_later"], "growing": True}

import math
import sys

import torch
from torch import nn

_pending = []


def compile_later(fn):
    """Marks a function for the compiler; names are looked up where it was defined."""
    _pending.append((fn, sys._getframe(1)))  # <- here
    return fn


class SplitAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape

        @compile_later
        def to_heads(z):
            return z.view(b, t, self.heads, c // self.heads).transpose(1, 2)

        @compile_later
        def scaled_scores(q, k):
            return q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)

        q, k, v = map(to_heads, self.qkv(x).chunk(3, dim=-1))  # <- here
        weights = scaled_scores(q, k).softmax(-1)  # <- here
        mixed = (weights @ v).transpose(1, 2).reshape(b, t, c)  # <- here
        return self.proj(mixed)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SplitAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Denoiser(nn.Module):
    def __init__(self, dim=256, depth=3):
        super().__init__()
        self.layers = nn.Sequential(*[Layer(dim, 4) for _ in range(depth)])
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(self.layers(x))


def train(steps=100):
    torch.manual_seed(2)
    net = Denoiser().cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-4)
    for step in range(steps):
        clean = torch.randn(8, 64, 256, device="cuda")
        noise = torch.randn_like(clean)
        loss = nn.functional.mse_loss(net(clean + 0.3 * noise), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 25 == 0:
            print(f"{step + 1}: {loss.item():.4f}")


train()
