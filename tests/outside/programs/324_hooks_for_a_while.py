"""Every ten steps activations are collected by forward hooks for a norm, inside a context manager that removes the hooks; what was collected last is on the manager, which is made again each time. Pattern: activation statistics."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Collect:
    def __init__(self, model):
        self.model, self.seen, self.handles = model, {}, []

    def __enter__(self):
        for name, layer in self.model.named_modules():
            if isinstance(layer, nn.Linear):
                self.handles.append(layer.register_forward_hook(self.hook(name)))
        return self

    def hook(self, name):
        def keep(module, args, out):
            self.seen[name] = out.detach()

        return keep

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()


net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(120):
    x = torch.randn(128, 64, device="cuda")
    if step % 10 == 0:
        with Collect(net) as collected:
            net(x)
        norms = {name: float(seen.norm()) for name, seen in collected.seen.items()}
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
