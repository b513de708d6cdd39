"""Experts are made when the first example of their domain comes, and are added to the optimizer; there are ten domains, and the last comes after 108 steps. Pattern: modules that are built lazily."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.experts = nn.Linear(64, 64), nn.ModuleDict()

    def of(self, domain, opt):
        if domain not in self.experts:
            self.experts[domain] = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
            opt.add_param_group({"params": self.experts[domain].parameters()})
        return self.experts[domain]


model = Experts().cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(180):
    domain = str((step * 7) % (1 + min(9, step // 12)))
    x = torch.randn(128, 64, device="cuda")
    loss = (model.of(domain, opt)(model.trunk(x)) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
