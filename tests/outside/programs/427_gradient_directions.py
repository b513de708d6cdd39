"""Gradients for a penalty are made with create_graph. They are kept in a list as they are, to compare directions at the end: each has the graph of its step. Pattern: gradient histories and double backward."""
EXPECTED = {"kind": "leak", "holder": ["directions"], "growing": True}

import torch
from torch import nn

critic = nn.Sequential(nn.Linear(40, 400), nn.Softplus(), nn.Linear(400, 400), nn.Softplus(), nn.Linear(400, 1)).cuda()
opt = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
directions = []
for step in range(60):
    real, fake = torch.randn(128, 40, device="cuda"), torch.randn(128, 40, device="cuda")
    between = (real + fake).div(2).requires_grad_()
    (direction,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (direction.norm(dim=1) - 1).square().mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    opt.zero_grad()
    loss.backward()
    opt.step()
    directions.append(direction)  # <- here
print(len(directions))
