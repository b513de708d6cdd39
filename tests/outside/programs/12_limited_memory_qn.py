"""A network is fitted with a small limited-memory quasi-Newton method; its history of flat steps and gradient differences makes memory climb during the first iterations, until the fixed history length is reached. Source: https://github.com/ProGamerGov/neural-style-pt/issues/7 - the thread established that the optimiser's memory is given by history_size (100 by default), a bounded history of past steps."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch


class LimitedMemoryQN(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, history_size=8):
        super().__init__(params, dict(lr=lr))
        self.pairs = deque(maxlen=history_size)
        self.prev = None

    def _flat(self, of_grad):
        ps = self.param_groups[0]["params"]
        return torch.cat([(p.grad if of_grad else p.detach()).reshape(-1) for p in ps])

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        x, g = self._flat(False), self._flat(True)
        if self.prev is not None:
            self.pairs.append((x - self.prev[0], g - self.prev[1]))
        self.prev = (x, g)

        q, back = g.clone(), []
        for s, y in reversed(self.pairs):
            rho = 1.0 / (torch.dot(s, y).abs() + 1e-6)
            a = rho * torch.dot(s, q)
            q -= a * y
            back.append((a, rho, s, y))
        for a, rho, s, y in reversed(back):
            q += (a - rho * torch.dot(y, q)) * s

        offset = 0
        for p in self.param_groups[0]["params"]:
            n = p.numel()
            p.sub_(self.param_groups[0]["lr"] * q[offset:offset + n].view_as(p))
            offset += n
        return loss


net = torch.nn.Sequential(
    torch.nn.Linear(64, 1024), torch.nn.Softplus(),
    torch.nn.Linear(1024, 1024), torch.nn.Softplus(),
    torch.nn.Linear(1024, 1),
).cuda()
opt = LimitedMemoryQN(net.parameters(), lr=0.05, history_size=8)
x = torch.randn(512, 64, device="cuda")
y = torch.randn(512, 1, device="cuda")


def closure():
    opt.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss


for k in range(100):
    value = opt.step(closure).item()
    if k % 20 == 0:
        print(k, value)
