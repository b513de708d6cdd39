"""A helper that makes Fourier features is wrapped in functools.lru_cache without a bound; its argument is a tensor, which hashes by identity, so that no call ever hits and every batch and its features stay in the cache. Pattern: forum answers on lru_cache over tensors."""
EXPECTED = {"kind": "leak", "holder": ["fourier", "cache", "lru"], "growing": True}

import functools

import torch
from torch import nn


@functools.lru_cache(maxsize=None)  # <- here
def fourier(points, bands):  # <- here
    scales = 2.0 ** torch.arange(bands, device=points.device)
    angles = points[..., None] * scales
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)


def main():
    field = nn.Sequential(nn.Linear(3 * 2 * 16, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
    opt = torch.optim.Adam(field.parameters(), lr=1e-3)
    for it in range(70):
        rays = torch.rand(4096, 3, device="cuda")
        colour = field(fourier(rays, 16))  # <- here
        loss = (colour - 0.5).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"done {loss.item():.4f}")


main()
