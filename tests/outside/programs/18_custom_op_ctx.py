"""A gated layer written as torch.autograd.Function keeps its intermediate cell values as plain attributes of ctx; the training loop keeps the loss tensors of the epoch, and since attributes of ctx are not cleared by backward, each kept loss drags the layer's intermediates along. Source: https://github.com/asappresearch/sru/pull/171 - the pull request established that intermediates stored in ctx without save_for_backward are a memory leak."""
EXPECTED = {"kind": "leak", "holder": ["losses", "ctx", "cell", "GatedOp"], "growing": True}

import torch
from torch import nn


class GatedOp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, gate):
        cell = torch.sigmoid(gate) * torch.tanh(u)
        ctx.save_for_backward(u, gate)
        ctx.cell = cell  # <- here
        return cell + u

    @staticmethod
    def backward(ctx, grad):
        u, gate = ctx.saved_tensors
        s, t = torch.sigmoid(gate), torch.tanh(u)
        grad_u = grad * (1 + s * (1 - t * t))
        grad_gate = grad * ctx.cell * (1 - s)
        return grad_u, grad_gate


class GatedLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, 2 * d)

    def forward(self, x):
        u, gate = self.proj(x).chunk(2, dim=-1)
        return GatedOp.apply(u, gate)


model = nn.Sequential(*[GatedLayer(256) for _ in range(3)], nn.Linear(256, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())

losses = []
for i in range(80):
    batch = torch.randn(1024, 256, device="cuda")
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)  # <- here

print("mean loss", sum(l.item() for l in losses) / len(losses))
