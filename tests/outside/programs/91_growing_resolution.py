"""A generator that grows from 8 to 128 pixels: every stage adds a block to both networks and renders the fixed set of test latents in the new size, so memory goes up in stairs, and each step up is the larger network and the larger preview. Source: https://github.com/nashory/pggan-pytorch/issues/16 - reported as a leak during growing; the reporter took it back, the cause was the fixed batch of test latents rendered at ever higher resolution, not a leak."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn
import torch.nn.functional as F

dev = torch.device("cuda")
CH = {8: 256, 16: 192, 32: 128, 64: 64, 128: 32}


class G(nn.Module):
    def __init__(self, nz=128):
        super().__init__()
        self.start = nn.Linear(nz, CH[8] * 64)
        self.blocks = nn.ModuleList()
        self.to_rgb = nn.Conv2d(CH[8], 3, 1)

    def grow(self, res):
        self.blocks.append(nn.Conv2d(CH[res // 2], CH[res], 3, padding=1).to(dev))
        self.to_rgb = nn.Conv2d(CH[res], 3, 1).to(dev)

    def forward(self, z):
        h = self.start(z).view(-1, CH[8], 8, 8)
        for b in self.blocks:
            h = F.leaky_relu(b(F.interpolate(h, scale_factor=2)), 0.2)
        return torch.tanh(self.to_rgb(h))


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.from_rgb = nn.Conv2d(3, CH[8], 1)
        self.blocks = nn.ModuleList()
        self.end = nn.Linear(CH[8] * 64, 1)

    def grow(self, res):
        self.blocks.insert(0, nn.Conv2d(CH[res], CH[res // 2], 3, padding=1).to(dev))
        self.from_rgb = nn.Conv2d(3, CH[res], 1).to(dev)

    def forward(self, x):
        h = F.leaky_relu(self.from_rgb(x), 0.2)
        for b in self.blocks:
            h = F.avg_pool2d(F.leaky_relu(b(h), 0.2), 2)
        return self.end(h.flatten(1))


def train_stage(g, d, res, z_test, iters=18, bs=8):
    og = torch.optim.Adam(g.parameters(), lr=1e-3, betas=(0.0, 0.99))
    od = torch.optim.Adam(d.parameters(), lr=1e-3, betas=(0.0, 0.99))
    preview = None
    for i in range(iters):
        real = torch.randn(bs, 3, res, res, device=dev)
        fake = g(torch.randn(bs, 128, device=dev))
        loss_d = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        od.zero_grad()
        loss_d.backward()
        od.step()

        loss_g = F.softplus(-d(fake)).mean()
        og.zero_grad()
        loss_g.backward()
        og.step()
        if i % 6 == 5:
            with torch.no_grad():
                preview = g(z_test)
    return preview


def main():
    torch.manual_seed(0)
    g, d = G().to(dev), D().to(dev)
    z_test = torch.randn(64, 128, device=dev)
    for res in (8, 16, 32, 64, 128):
        if res > 8:
            g.grow(res)
            d.grow(res)
        preview = train_stage(g, d, res, z_test)
        print("resolution", res, "preview", tuple(preview.shape))


main()
