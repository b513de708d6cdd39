"""A sparse autoencoder is trained on activations of a frozen model: whenever the buffer is nearly empty, 24 batches of activations are collected, joined and shuffled, and each step then takes rows off its end. Right: used up again and again. Pattern: activation buffers."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Activations:
    def __init__(self, model):
        self.model = model
        self.rows = torch.empty(0, 128, device="cuda")

    def refill(self):
        parts = [self.rows]
        for _ in range(24):
            with torch.no_grad():
                parts.append(self.model(torch.randn(256, 64, device="cuda")))
        rows = torch.cat(parts)
        self.rows = rows[torch.randperm(len(rows), device="cuda")]

    def take(self, count):
        if len(self.rows) < 2 * count:
            self.refill()
        taken, self.rows = self.rows[-count:], self.rows[:-count].clone()
        return taken


frozen = nn.Sequential(nn.Linear(64, 128), nn.GELU()).cuda().requires_grad_(False)
encode, decode = nn.Linear(128, 512).cuda(), nn.Linear(512, 128).cuda()
opt = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=1e-3)
buffer = Activations(frozen)
for step in range(100):
    x = buffer.take(256)
    code = torch.relu(encode(x))
    loss = (decode(code) - x).square().mean() + 1e-3 * code.abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
