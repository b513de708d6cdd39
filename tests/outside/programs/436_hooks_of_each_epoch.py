"""Each epoch registers a hook that collects the features of the last layer for the statistics of this epoch. The hooks are not removed: those of earlier epochs go on and fill their lists. Pattern: hooks that are registered in a loop."""
EXPECTED = {"kind": "leak", "holder": ["features", "collected", "_forward_hooks", "hook"], "growing": True}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6)).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_epoch(steps):
    collected = []

    def hook(module, args, output):
        collected.append(output.detach())  # <- here

    model[3].register_forward_hook(hook)  # <- here
    for _ in range(steps):
        loss = model(torch.randn(128, 48, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return torch.stack([one.mean() for one in collected]).std().item()


for epoch in range(8):
    print(epoch, train_epoch(16) >= 0)
