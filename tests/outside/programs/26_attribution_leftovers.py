"""A model is briefly trained, explained once by an attribution routine that writes .input and .output onto the layers, and then trained on; the routine removes its hooks but not those attributes, so the tensors of that one call stay on the GPU (constant, not growing). Source: https://github.com/jmschrei/tangermeme/pull/84 - the pull request established that module.input and module.output are never cleared when the hooks are removed."""
EXPECTED = {"kind": "leak", "holder": ["input", "output"], "growing": False}

import torch
from torch import nn


def _record(module, args, result):
    module.input = args[0].detach()  # <- here
    module.output = result.detach()  # <- here


def _clear_hooks(handles):
    for h in handles:
        h.remove()


def attribute(model, x):
    handles = [m.register_forward_hook(_record) for m in model if isinstance(m, nn.Linear)]
    x = x.clone().requires_grad_(True)
    score = model(x).sum()
    (g,) = torch.autograd.grad(score, x)
    rescale = 0.0
    for m in model:
        if isinstance(m, nn.Linear):
            rescale += (m.output.mean() - m.input.mean()).item()
    _clear_hooks(handles)
    return (g * x.detach()).sum(-1).mean().item(), rescale


def steps(model, opt, n):
    loss = None
    for _ in range(n):
        x = torch.randn(256, 1024, device="cuda")
        loss = (model(x) - 1.0).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


model = nn.Sequential(
    nn.Linear(1024, 1024), nn.ReLU(),
    nn.Linear(1024, 1024), nn.ReLU(),
    nn.Linear(1024, 1024), nn.ReLU(),
    nn.Linear(1024, 1),
).cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-4)

print("warm-up", steps(model, opt, 15))
print("attribution", attribute(model, torch.randn(4096, 1024, device="cuda")))
print("main run", steps(model, opt, 80))
