"""A segmentation head with sine position embeddings that are cached per feature shape; there are only three image shapes, so the cache holds three tensors after a few steps and nothing more. Source: https://github.com/huggingface/transformers/pull/40007 - a reviewer warned that cached tensors are never cleaned up; the author established that they are few and relatively small and the impact not noticeable."""
EXPECTED = {"kind": "innocent"}

import functools
import itertools

import torch
from torch import nn


@functools.lru_cache(maxsize=8)
def sine_positions(h, w, dim, device):
    ys = torch.arange(h, device=device, dtype=torch.float32)[:, None, None]
    xs = torch.arange(w, device=device, dtype=torch.float32)[None, :, None]
    div = 10000 ** (torch.arange(dim // 4, device=device) / (dim // 4))
    py = torch.cat([torch.sin(ys / div), torch.cos(ys / div)], -1).expand(h, w, dim // 2)
    px = torch.cat([torch.sin(xs / div), torch.cos(xs / div)], -1).expand(h, w, dim // 2)
    return torch.cat([py, px], -1).reshape(1, h * w, dim)


class MaskHead(nn.Module):
    def __init__(self, dim=128, heads=4, classes=12):
        super().__init__()
        self.patch = nn.Linear(3 * 16 * 16, dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.cls = nn.Linear(dim, classes)

    def forward(self, patches, h, w):
        x = self.patch(patches)
        x = x + sine_positions(h, w, x.shape[-1], "cuda")
        x = self.norm(x + self.attn(x, x, x, need_weights=False)[0])
        return self.cls(x)


shapes = itertools.cycle([(16, 16), (16, 24), (24, 24)])
head = MaskHead().cuda()
opt = torch.optim.AdamW(head.parameters(), lr=1e-4)
meter = 0.0
for step, (h, w) in zip(range(105), shapes):
    patches = torch.randn(4, h * w, 3 * 16 * 16, device="cuda")
    labels = torch.zeros(4, h * w, dtype=torch.long, device="cuda")
    loss = nn.functional.cross_entropy(head(patches, h, w).transpose(1, 2), labels)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    meter = 0.98 * meter + 0.02 * loss.item()
print("smoothed", meter, sine_positions.cache_info())
