"""A network that solves a differential equation: second derivatives by create_graph, LBFGS with a closure, points drawn again every ten steps, the history of losses as numbers. Pattern: physics-informed networks."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4, history_size=12)
history = []


def residual(points):
    u = net(points)
    (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), points, create_graph=True)
    return bend + u


for step in range(60):
    if step % 10 == 0:
        points = torch.rand(400, 1, device="cuda", requires_grad=True)

    def closure():
        optimizer.zero_grad()
        loss = residual(points).square().mean() + (net(torch.zeros(1, 1, device="cuda")) - 1).square().mean()
        loss.backward()
        history.append(loss.item())
        return loss

    optimizer.step(closure)
print(len(history))
