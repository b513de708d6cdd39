"""Before each checkpoint a hook is registered that adds the prototypes of now to the state_dict; none is removed. 96 KiB for each checkpoint, one every four steps. Pattern: hooks of state_dict registered where the checkpoint is written."""
EXPECTED = {"kind": "leak", "holder": ["hook", "prototypes", "add"], "growing": True}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96)).cuda()
opt = torch.optim.Adam(net.parameters())


def checkpoint(prototypes):
    def add(module, state, prefix, local):
        state[prefix + "prototypes"] = prototypes

    net.register_state_dict_post_hook(add)  # <- here
    return {name: value.cpu() for name, value in net.state_dict().items()}


for step in range(120):
    x = torch.randn(256, 96, device="cuda")
    out = net(x)
    loss = (out - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 4 == 3:
        checkpoint(out.detach().clone())  # <- here
