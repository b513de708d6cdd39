"""Full backward hooks put the gradient of each layer"s output into a dictionary by layer and step; the plot needs the newest only. 96 KiB a step. Pattern: gradient flow plots."""
EXPECTED = {"kind": "leak", "holder": ["flow"], "growing": True}

import torch
from torch import nn

flow, step = {}, 0


def watch(name):
    def hook(module, grad_input, grad_output):
        flow[name, step] = grad_output[0]  # <- here

    return hook


net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
for name, part in net.named_children():
    if isinstance(part, nn.Linear):
        part.register_full_backward_hook(watch(name))
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
while step < 80:
    x = torch.randn(96, 64, device="cuda")
    loss = (net(x) - x).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
