"""To clip gradients by a mask, a hook is registered on the first weight in every step and never removed: hooks and their masks accumulate. Pattern: tensor.register_hook inside the loop, a frequent forum question."""
EXPECTED = {"kind": "leak", "holder": ["hook", "mask", "masked"], "growing": True}

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)


def train_step(x, y, keep):
    mask = (torch.rand_like(net[0].weight) < keep).float()  # <- here
    net[0].weight.register_hook(lambda masked: masked * mask)  # <- here
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for step in range(60):
    x = torch.rand(64, 784, device="cuda")
    y = torch.randint(10, (64,), device="cuda")
    train_step(x, y, 0.9)
