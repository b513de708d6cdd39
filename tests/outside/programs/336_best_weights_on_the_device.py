"""An average of the weights, and the best weights so far, which are copied on the device whenever the validation improves. Pattern: EMA with early stopping."""
EXPECTED = {"kind": "innocent"}

import copy

import torch
from torch import nn

net = nn.Sequential(nn.Linear(60, 120), nn.SiLU(), nn.Linear(120, 60)).cuda()
average = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
held_out = torch.randn(200, 60, device="cuda")
best, best_loss, patience = None, float("inf"), 0


@torch.no_grad()
def update(decay=0.99):
    for slow, fast in zip(average.parameters(), net.parameters()):
        slow.lerp_(fast, 1 - decay)


for step in range(100):
    x = torch.randn(64, 60, device="cuda")
    loss = (net(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update()
    if step % 5 == 4:
        with torch.no_grad():
            value = (average(held_out) - held_out).square().mean().item() + 1 / (step + 1)
        if value < best_loss:
            best, best_loss, patience = {k: v.clone() for k, v in average.state_dict().items()}, value, 0
        else:
            patience += 1
net.load_state_dict(best)
