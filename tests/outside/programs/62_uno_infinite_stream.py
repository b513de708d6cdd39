"""Tuning a small image-conditioned denoiser from an endless stream: the DataLoader (whose collate function already moves the batch to the GPU) is wrapped in itertools.cycle, which remembers every batch of the first pass. Source: https://github.com/bytedance/UNO/issues/64 - the reporter traced the growth to itertools.cycle(dataloader), which caches each yielded item; iterating the loader directly cured it."""
EXPECTED = {"kind": "leak", "holder": ["itertools", "train_iter"], "growing": True}

import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class LatentPairs(Dataset):
    """Pretends to be a folder of pre-computed latents."""

    def __init__(self, length, side):
        self.length, self.side = length, side

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        latent = torch.randn(4, self.side, self.side, generator=g)
        return latent, torch.randn(32, 64, generator=g)


def to_device(samples):
    latents, conds = zip(*samples)
    return {
        "latents": torch.stack(latents).to("cuda"),  # <- here
        "cond": torch.stack(conds).to("cuda"),  # <- here
    }


class Denoiser(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.inp = nn.Conv2d(4, width, 3, padding=1)
        self.mid = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(4)])
        self.film = nn.Linear(64, width)
        self.out = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x, cond):
        h = self.inp(x) + self.film(cond.mean(1))[:, :, None, None]
        for conv in self.mid:
            h = h + F.silu(conv(h))
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-steps", type=int, default=90)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=1e-4)
    opt = ap.parse_args()

    loader = DataLoader(LatentPairs(4000, 32), batch_size=opt.batch_size, shuffle=True, collate_fn=to_device)
    train_iter = itertools.cycle(loader)  # <- here

    net = Denoiser().cuda()
    optim = torch.optim.AdamW(net.parameters(), lr=opt.lr)

    for step in range(1, opt.max_steps + 1):
        batch = next(train_iter)  # <- here
        x0 = batch["latents"]
        noise = torch.randn_like(x0)
        t = torch.rand(x0.size(0), 1, 1, 1, device=x0.device)
        loss = F.mse_loss(net((1 - t) * x0 + t * noise, batch["cond"]), noise - x0)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        if step % 30 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
