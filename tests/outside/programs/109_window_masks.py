"""Multi-scale training of a local-attention encoder: the distance biases of each of 14 input sizes are built the first time that size is drawn and are then reused from a dict, so usage rises in ever rarer stairs and stops when every size has been met. Source: none, a common pattern."""
EXPECTED = {"kind": "innocent"}

import random
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZES = list(range(8, 36, 2))        # side of the feature map, 14 of them


class BiasTable:
    cache = {}

    @classmethod
    def get(cls, side, device):
        if side not in cls.cache:
            axis = torch.arange(side, device=device, dtype=torch.float32)
            yy, xx = torch.meshgrid(axis, axis, indexing="ij")
            pts = torch.stack([yy.flatten(), xx.flatten()], 1)
            cls.cache[side] = -torch.cdist(pts, pts)
        return cls.cache[side]


class LocalAttention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.slope = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, x, side):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        att = att + self.slope * BiasTable.get(side, x.device)
        return x + self.proj((att.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class Encoder(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 8, stride=8)
        self.attn = nn.ModuleList([LocalAttention(dim), LocalAttention(dim)])
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1024), nn.GELU(), nn.Linear(1024, dim))
        self.cls = nn.Linear(dim, 20)

    def forward(self, img):
        f = self.patch(img)
        side = f.shape[-1]
        x = f.flatten(2).transpose(1, 2)
        for a in self.attn:
            x = a(x, side)
        return self.cls(self.ff(x).mean(1))


def train():
    random.seed(21)
    model = Encoder().cuda()
    opt = torch.optim.AdamW(model.parameters(), 2e-4)
    hist = []
    for it in range(100):
        side = random.choice(SIZES)
        img = torch.randn(1, 3, side * 8, side * 8, device="cuda")
        loss = F.cross_entropy(model(img), torch.randint(0, 20, (1,), device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
        hist.append(loss.item())
        if it % 20 == 19:
            print(f"it {it + 1} sizes cached {len(BiasTable.cache)} loss {sum(hist[-20:]) / 20:.3f}")


train()
