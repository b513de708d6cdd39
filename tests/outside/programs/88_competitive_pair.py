"""Training a small generator and critic with a competitive second-order update: gradients are taken with create_graph, mixed products are solved by a few conjugate-gradient rounds from the last solution; the peak is several times that of Adam, but all of it is freed at the end of each step. Source: https://github.com/devzhk/Implicit-Competitive-Regularization/issues/12 - a user found far more memory in use than with Adam; the author answered that a multiple of Adam's use is what the method needs."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


class CompetitiveSolver:
    def __init__(self, max_params, min_params, lr=1e-3, rounds=4):
        self.xs, self.ys = list(max_params), list(min_params)
        self.lr, self.rounds = lr, rounds
        self.warm = None

    def mixed(self, grads, params, vec):
        """d/d params of <grads, vec>."""
        out = torch.autograd.grad(flat(grads), params, grad_outputs=vec, retain_graph=True, allow_unused=True, materialize_grads=True)
        return flat(out).detach()

    def solve(self, apply, rhs):
        x = torch.zeros_like(rhs) if self.warm is None else self.warm.clone()
        r = rhs - apply(x)
        p = r.clone()
        rr = r.dot(r)
        for _ in range(self.rounds):
            ap = apply(p)
            alpha = rr / (p.dot(ap) + 1e-8)
            x = x + alpha * p
            r = r - alpha * ap
            fresh = r.dot(r)
            p = r + fresh / (rr + 1e-8) * p
            rr = fresh
        return x

    def step(self, value):
        gx = torch.autograd.grad(value, self.xs, create_graph=True)
        gy = torch.autograd.grad(value, self.ys, create_graph=True)
        gx_flat, gy_flat = flat(gx).detach(), flat(gy).detach()

        def curvature(v):
            inner = self.mixed(gx, self.ys, v)
            return v + self.lr ** 2 * self.mixed(gy, self.xs, inner)

        rhs = gx_flat - self.lr * self.mixed(gy, self.xs, gy_flat)
        dx = self.solve(curvature, rhs)
        self.warm = dx
        dy = gy_flat + self.lr * self.mixed(gx, self.ys, dx)
        self.move(self.xs, dx, +self.lr)
        self.move(self.ys, dy, -self.lr)

    @torch.no_grad()
    def move(self, params, delta, scale):
        at = 0
        for p in params:
            n = p.numel()
            p.add_(delta[at:at + n].view_as(p), alpha=scale)
            at += n


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.Softplus()]
    return nn.Sequential(*layers[:-1])


if __name__ == "__main__":
    torch.manual_seed(11)
    gen = mlp(64, 768, 768, 512).cuda()
    critic = mlp(512, 768, 768, 1).cuda()
    solver = CompetitiveSolver(critic.parameters(), gen.parameters())

    log = []
    for step in range(60):
        real = torch.randn(128, 512, device="cuda")
        fake = gen(torch.randn(128, 64, device="cuda"))
        value = critic(real).mean() - critic(fake).mean()
        solver.step(value)
        log.append(value.item())
        if step % 15 == 14:
            print(step + 1, sum(log[-15:]) / 15)
