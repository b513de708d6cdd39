"""A monitor registers a hook for all modules of the process every four steps, to see dead units; the handle is dropped. Each hook has a table of the newest outputs of its own. Pattern: register_module_forward_hook without remove()."""
EXPECTED = {"kind": "leak", "holder": ["_global_forward_hooks", "table", "Monitor", "watch", "hook"], "growing": True}

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook


def watch(interesting):
    table = {}

    def hook(module, inputs, output):
        if isinstance(module, interesting) and module not in table:
            table[module] = output.detach().clone()  # <- here

    register_module_forward_hook(hook)  # <- here
    return table


net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for step in range(120):
    if step % 4 == 0:
        watch(nn.ReLU)
    loss = net(torch.randn(64, 64, device="cuda")).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
