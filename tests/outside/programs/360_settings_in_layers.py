"""Each step lays its values over the settings of the run, as a child of a ChainMap, and nothing takes the layer off again. 64 KiB a step. Pattern: nested scopes of settings."""
EXPECTED = {"kind": "leak", "holder": ["settings", "ChainMap", "maps"], "growing": True}

from collections import ChainMap

import torch
from torch import nn

settings = ChainMap({"rate": 1e-3, "clip": 1.0})
net = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 48)).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=settings["rate"])
for step in range(96):
    x = torch.randn(128, 48, device="cuda")
    hidden = net[1](net[0](x))
    loss = (net[2](hidden) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), settings["clip"])
    optimizer.step()
    settings = settings.new_child({"step": step, "hidden": hidden.detach()})  # <- here
print("rate", settings["rate"])
