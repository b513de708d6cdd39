"""An optimizer written by hand simulates stale gradients of asynchronous training: it keeps the last 24 gradients of each weight in its state and applies the oldest. The network has 256 MiB, so that the card is full before the queue is. Pattern: delayed gradients."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["optimizer"], "mentions": [["optimizer"]]}

# Weights 256 MiB, gradients 256 MiB; each step adds 256 MiB to the state.
from collections import deque

import torch
from torch import nn


class StaleSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, delay):
        super().__init__(params, {"lr": lr, "delay": delay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                queue = self.state[p].setdefault("queue", deque())
                queue.append(p.grad.clone())
                if len(queue) > group["delay"]:
                    p.add_(queue.popleft(), alpha=-group["lr"])


net = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.Tanh()) for _ in range(16)]).cuda()
opt = StaleSGD(net.parameters(), lr=0.01, delay=24)
for step in range(60):
    x = torch.randn(64, 2048, device="cuda")
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
