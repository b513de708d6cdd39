"""Compressed gradients: what the compression left out is kept for each parameter, and added next time. Layers are unfrozen one after the other, and get their residue then. Pattern: error feedback."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

model = nn.Sequential(*(nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(6)), nn.Linear(192, 4)).cuda()
for layer in model[:-1]:
    layer.requires_grad_(False)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
residues = {}


def compress(name, gradient):
    if name in residues:
        gradient = gradient + residues[name]
    sent = gradient.round(decimals=2)
    residues[name] = gradient - sent
    return sent


for step in range(110):
    if step % 15 == 14 and step // 15 < 6:
        model[5 - step // 15].requires_grad_(True)
    loss = model(torch.randn(64, 192, device="cuda")).square().mean()
    opt.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parameter.grad = compress(name, parameter.grad)
    opt.step()
