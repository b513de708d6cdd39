"""A physics-informed network is fitted by torch.optim.LBFGS with a history of 40 and one iteration a step. Right: the history is bounded, and fills during the whole run."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()
points = torch.rand(2000, 2, device="cuda")
opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=1, history_size=40, line_search_fn=None)
for step in range(70):

    def residual():
        opt.zero_grad()
        u = net(points)
        loss = (u.squeeze(1) - points.prod(1)).square().mean()
        loss.backward()
        return loss

    opt.step(residual)
