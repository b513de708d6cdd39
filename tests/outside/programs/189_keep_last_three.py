"""After each epoch the weights are copied on the device into a list of which all but the last three are deleted. Right: bounded by code."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(400, 800), nn.ReLU(), nn.Linear(800, 400)).cuda()
opt = torch.optim.Adam(model.parameters())
kept = []
for epoch in range(10):
    for _ in range(12):
        x = torch.randn(64, 400, device="cuda")
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    kept.append({k: v.clone() for k, v in model.state_dict().items()})
    del kept[:-3]
print(len(kept))
