"""Diffusion training with an exponential moving average of the weights on the accelerator, started after a warm-up of ten steps; from then on memory is higher by one copy of the weights, and stays there. Source: https://github.com/bghira/SimpleTuner/issues/2158 - the maintainer describes keeping the EMA model on the accelerator as a non-trivial but acceptable memory overhead."""
EXPECTED = {"kind": "innocent"}

import copy
import math

import torch
from torch import nn


class TimeMLP(nn.Module):
    def __init__(self, dim=512, width=1024):
        super().__init__()
        self.width = width
        self.inp = nn.Linear(dim, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, dim)

    def forward(self, x, t):
        freq = torch.exp(-math.log(1e4) * torch.arange(self.width // 2, device=x.device) / (self.width // 2))
        emb = torch.cat([torch.sin(t * freq), torch.cos(t * freq)], dim=-1)
        h = torch.nn.functional.silu(self.inp(x) + emb)
        return self.out(torch.nn.functional.silu(self.mid(h)))


class EMA:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


def q_sample(x0, t, noise):
    a = torch.cos(t * math.pi / 2)
    return a * x0 + (1 - a * a).clamp(min=0).sqrt() * noise


model, ema = TimeMLP().cuda(), None
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(100):
    x0 = torch.randn(64, 512, device="cuda")
    noise = torch.randn_like(x0)
    t = torch.rand(64, 1, device="cuda")
    loss = (model(q_sample(x0, t, noise), t) - noise).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 10:
        ema = EMA(model)
    elif ema is not None:
        ema.update(model)
print("ok", loss.item())
