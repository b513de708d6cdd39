"""A diffusion model with a hand-written attention block trains on small images; on the first high-resolution image the attention matrix over all pixels does not fit. Source: https://github.com/explainingai-code/DDPM-Pytorch/issues/8 - with large images the attention layer takes huge memory (quadratic in the number of pixels); the author advises to drop attention there or to make the images smaller."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations"],
            "mentions": [["attention", "scores", "quadratic", "sequence length", "resolution"]]}

# Arithmetic: 4 heads x (128*128)^2 pairs x 4 bytes = 4 x 1 GiB = 4096 MiB for the scores alone,
# the whole card; the 32x32 images before need 4 x 1024^2 x 4 bytes = 16 MiB and fit.
import math

import torch
from torch import nn


class AttentionBlock(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x):
        b, c, h, w = x.shape
        seq = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(seq).view(b, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
        mixed = scores.softmax(dim=-1) @ v
        mixed = self.proj(mixed.transpose(1, 2).reshape(b, h * w, c))
        return x + mixed.transpose(1, 2).view(b, c, h, w)


class TinyUnet(nn.Module):
    def __init__(self, ch=64):
        super().__init__()
        self.lift = nn.Conv2d(3, ch, 1)
        self.attn = AttentionBlock(ch)
        self.drop = nn.Conv2d(ch, 3, 1)

    def forward(self, x):
        return self.drop(self.attn(self.lift(x)))


unet = TinyUnet().cuda()
opt = torch.optim.Adam(unet.parameters(), lr=1e-4)
for size in [32, 32, 32, 32, 128, 128]:
    image = torch.randn(1, 3, size, size, device="cuda")
    noise = torch.randn_like(image)
    loss = (unet(image + noise) - noise).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(size, loss.item())
