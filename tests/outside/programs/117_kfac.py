"""K-FAC on a multilayer perceptron: input and gradient covariance factors are running averages updated in place, and the inverse factors are formed for one layer after another in the first 50 steps to spread the cost; later refreshes write into the same tensors. Source: none, a common pattern."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class KFAC(torch.optim.Optimizer):
    def __init__(self, model, lr=0.02, decay=0.95, damping=0.03, refresh=8):
        super().__init__(model.parameters(), dict(lr=lr))
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.decay, self.damping, self.refresh = decay, damping, refresh
        self.A, self.G, self.invA, self.invG = {}, {}, {}, {}
        self.turn = 0
        for m in self.layers:
            m.register_forward_pre_hook(self._save_input)
            m.register_full_backward_hook(self._save_grad)

    def _running(self, store, key, new):
        if key in store:
            store[key].mul_(self.decay).add_(new, alpha=1 - self.decay)
        else:
            store[key] = new

    @torch.no_grad()
    def _save_input(self, m, inputs):
        a = inputs[0].detach()
        self._running(self.A, m, a.t() @ a / len(a))

    @torch.no_grad()
    def _save_grad(self, m, gin, gout):
        g = gout[0].detach() * len(gout[0])
        self._running(self.G, m, g.t() @ g / len(g))

    def _inverse(self, cov):
        """Three Newton-Schulz steps on the damped factor."""
        n = cov.shape[0]
        eye = torch.eye(n, device=cov.device)
        c = cov + self.damping * eye
        x = eye / (c.diagonal().sum() + 1e-6)
        for _ in range(3):
            x = x @ (2 * eye - c @ x)
        return x

    @torch.no_grad()
    def step(self):
        if self.turn % self.refresh == 0:
            m = self.layers[(self.turn // self.refresh) % len(self.layers)]
            for inv, cov in ((self.invA, self.A), (self.invG, self.G)):
                if m in inv:
                    inv[m].copy_(self._inverse(cov[m]))
                else:
                    inv[m] = self._inverse(cov[m])
        self.turn += 1
        lr = self.param_groups[0]["lr"]
        for m in self.layers:
            d = m.weight.grad
            if m in self.invA:
                d = self.invG[m] @ d @ self.invA[m]
            m.weight.add_(d, alpha=-lr)
            m.bias.add_(m.bias.grad, alpha=-lr)


net = nn.Sequential(
    nn.Linear(1024, 900), nn.Tanh(), nn.Linear(900, 900), nn.Tanh(), nn.Linear(900, 900), nn.Tanh(),
    nn.Linear(900, 900), nn.Tanh(), nn.Linear(900, 900), nn.Tanh(), nn.Linear(900, 64),
).cuda()
kfac = KFAC(net)

for step in range(110):
    x = torch.randn(96, 1024, device="cuda")
    loss = nn.functional.mse_loss(net(x), torch.randn(96, 64, device="cuda"))
    kfac.zero_grad()
    loss.backward()
    kfac.step()
    if step % 27 == 26:
        print(step + 1, "inverses", len(kfac.invA), "loss", loss.item())
