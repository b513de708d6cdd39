"""Two backwards a step, and the weights are moved and moved back between them. Pattern: SAM."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05):
        super().__init__(params, {"rho": rho})
        self.base = base

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad, alpha=group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()


net = nn.Sequential(nn.Linear(64, 192), nn.ReLU(), nn.Linear(192, 8)).cuda()
opt = SAM(net.parameters(), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
for step in range(80):
    x, y = torch.randn(64, 64, device="cuda"), torch.randint(0, 8, (64,), device="cuda")
    nn.functional.cross_entropy(net(x), y).backward()
    opt.first_step()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
