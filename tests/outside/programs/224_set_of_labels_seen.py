"""Predicted classes are put into a set to count the different ones; tensors hash by identity, so each step adds all of them again. Pattern: question and answer threads about tensors in sets."""
EXPECTED = {"kind": "leak", "holder": ["seen"], "growing": True}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 40)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
seen = set()

for step in range(100):
    x = torch.randn(2048, 64, device="cuda")
    out = model(x)
    loss = nn.functional.cross_entropy(out, torch.randint(0, 40, (2048,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen.add(out.argmax(1))  # <- here
print("different predictions:", len(seen))
