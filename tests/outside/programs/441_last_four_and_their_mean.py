"""The last four checkpoints stay on the device, and their mean is written into a model of its own for the validation. One checkpoint every 12 steps. Pattern: checkpoint averaging."""
EXPECTED = {"kind": "innocent"}

import copy
from collections import deque

import torch
from torch import nn

model = nn.Sequential(nn.Linear(100, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 7)).cuda()
mean = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
checkpoints = deque(maxlen=4)
for step in range(120):
    loss = model(torch.randn(96, 100, device="cuda")).logsumexp(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 12 == 11:
        checkpoints.append({name: value.detach().clone() for name, value in model.state_dict().items()})
        state = {name: torch.stack([one[name] for one in checkpoints]).mean(0) for name in checkpoints[0]}
        mean.load_state_dict(state)
        with torch.no_grad():
            print(step, mean(torch.randn(256, 100, device="cuda")).argmax(-1).float().mean().item() >= 0)
