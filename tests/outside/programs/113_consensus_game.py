"""A two-player game trained by consensus optimization: both players' gradients are taken with create_graph=True through torch.autograd.grad and their graph goes when the function returns; fakes go into a pool of 320 detached samples which fills and then swaps at random. Source: https://github.com/caogang/wgan-gp/issues/21 - a report of a leak with a gradient penalty; this program takes the form which was found sound there, one backward over everything."""
EXPECTED = {"kind": "innocent"}

import random
import torch
import torch.nn as nn
import torch.nn.functional as F

DIM, LATENT, B = 8192, 64, 8


class HistoryPool:
    """Shows the critic a mixture of new and earlier fakes."""

    def __init__(self, size):
        self.size, self.store = size, []

    def query(self, fakes):
        mixed = []
        for f in fakes.detach():
            if len(self.store) < self.size:
                self.store.append(f.clone())
                mixed.append(f)
            elif random.random() < 0.5:
                k = random.randrange(self.size)
                mixed.append(self.store[k])
                self.store[k] = f.clone()
            else:
                mixed.append(f)
        return torch.stack(mixed)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.Softplus(), nn.Linear(h, h), nn.Softplus(), nn.Linear(h, o))


def game_step(gen, critic, opts, pool, gamma=0.1):
    real = torch.randn(B, DIM, device="cuda")
    fake = gen(torch.randn(B, LATENT, device="cuda"))
    g_loss = F.softplus(-critic(fake)).mean()
    old = pool.query(fake)
    d_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean() + 0.5 * F.softplus(critic(old)).mean()

    gp, dp = list(gen.parameters()), list(critic.parameters())
    g_grads = torch.autograd.grad(g_loss, gp, create_graph=True)
    d_grads = torch.autograd.grad(d_loss, dp, create_graph=True)
    consensus = sum(g.pow(2).sum() for g in g_grads) + sum(g.pow(2).sum() for g in d_grads)
    reg = torch.autograd.grad(gamma * consensus, gp + dp, allow_unused=True)

    for p, g, r in zip(gp + dp, g_grads + d_grads, reg):
        p.grad = g.detach() if r is None else g.detach() + r
    for o in opts:
        o.step()
    return g_loss.item(), d_loss.item()


def main():
    random.seed(8)
    gen, critic = mlp(LATENT, 160, DIM).cuda(), mlp(DIM, 160, 1).cuda()
    opts = [torch.optim.RMSprop(m.parameters(), lr=1e-4) for m in (gen, critic)]
    pool = HistoryPool(320)
    log = {"g": [], "d": []}
    for n in range(90):
        g, d = game_step(gen, critic, opts, pool)
        log["g"].append(g)
        log["d"].append(d)
        if n % 18 == 17:
            print(n + 1, "pool", len(pool.store), "g", sum(log["g"]) / (n + 1), "d", sum(log["d"]) / (n + 1))


main()
