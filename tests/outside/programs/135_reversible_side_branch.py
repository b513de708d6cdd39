"""A reversible block keeps the halves of its output as ctx.y1 and ctx.y2 and deletes them in backward; the network has a second branch which the loss does not use at present, so backward never runs for it, and the output, its node and ctx refer to each other and are never freed, since a view hides the ring from Python's collector. Source: https://github.com/RobinBruegger/RevTorch/issues/1 - the output stored on ctx leaks where an output of the network takes no part in the loss; save_for_backward is the remedy."""
EXPECTED = {
    "kind": "leak",
    "holder": ["ctx", "ctx.y1", "ctx.y2", "y1", "y2", "CouplingBackward", "Coupling", "grad_fn"],
    "growing": True,
}

import torch
from torch import nn


class Coupling(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1); the input is rebuilt from the output in backward."""

    @staticmethod
    def forward(ctx, x, f, g, *weights):
        x1, x2 = x.chunk(2, dim=1)
        y1 = x1 + f(x2)
        y2 = x2 + g(y1)
        y = torch.cat([y1, y2], dim=1)
        ctx.f, ctx.g, ctx.weights = f, g, weights
        ctx.y1, ctx.y2 = y.chunk(2, dim=1)  # <- here
        return y

    @staticmethod
    def backward(ctx, dy):
        y1, y2 = ctx.y1.detach(), ctx.y2.detach()
        del ctx.y1, ctx.y2
        x2 = y2 - ctx.g(y1)
        x1 = y1 - ctx.f(x2)
        x = torch.cat([x1, x2], dim=1).requires_grad_()
        with torch.enable_grad():
            a, b = x.chunk(2, dim=1)
            top = a + ctx.f(b)
            out = torch.cat([top, b + ctx.g(top)], dim=1)
        grads = torch.autograd.grad(out, (x, *ctx.weights), dy)
        return (grads[0], None, None, *grads[1:])


class RevBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        half = c // 2
        self.f = nn.Sequential(nn.Linear(half, half), nn.ReLU())
        self.g = nn.Sequential(nn.Linear(half, half), nn.ReLU())

    def forward(self, x):
        return Coupling.apply(x, self.f, self.g, *self.f.parameters(), *self.g.parameters())


class TwoHeads(nn.Module):
    def __init__(self, c=512):
        super().__init__()
        self.inp = nn.Linear(40, c)
        self.trunk = nn.ModuleList([RevBlock(c), RevBlock(c)])
        self.classify = nn.Linear(c, 5)
        self.denoise = RevBlock(c)

    def forward(self, x):
        h = self.inp(x)
        for b in self.trunk:
            h = b(h)
        return self.classify(h), self.denoise(h)


net = TwoHeads().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.02)
side_weight = 0.0                                    # the second task comes later
for step in range(100):
    points = torch.randn(256, 40, device="cuda")
    labels = torch.randint(0, 5, (256,), device="cuda")
    scores, clean = net(points)
    loss = nn.functional.cross_entropy(scores, labels)
    if side_weight:
        loss = loss + side_weight * clean.abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 19:
        print(step + 1, loss.item())
