"""Sixteen micro-batches a step; their losses, detached, are collected on the GPU and the list is cleared after each step. Right: nothing is kept."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

model = nn.Sequential(nn.Embedding(2000, 128), nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 2000)).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
window = []
for micro in range(16 * 12):
    tokens = torch.randint(0, 2000, (32, 16), device="cuda")
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits, tokens[:, 0]) / 16
    loss.backward()
    window.append((loss.detach(), logits.detach()[:4].clone()))
    if len(window) == 16:
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(torch.stack([w[0] for w in window]).sum().item())
        window.clear()
