"""An own optimizer keeps every past gradient in its state to look for oscillations; only the last one is used. Pattern: research optimizers that log inside their state."""
EXPECTED = {"kind": "leak", "holder": ["past", "state"], "growing": True}

import torch
from torch import nn
from torch.optim import Optimizer


class SignAware(Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                past = self.state[p].setdefault("past", [])
                rate = group["lr"]
                if past:
                    rate = torch.where(past[-1] * p.grad > 0, rate, 0.5 * rate)
                p.sub_(rate * p.grad)
                past.append(p.grad.clone())  # <- here


model = nn.Sequential(nn.Linear(96, 192), nn.SiLU(), nn.Linear(192, 1)).cuda()
opt = SignAware(model.parameters(), lr=1e-2)
for it in range(70):
    x = torch.randn(128, 96, device="cuda")
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
