"""After each step a hook is registered on the optimizer, to compare the weights with those of before; none is removed. 130 KiB a step. Pattern: registering inside the loop what belongs before it."""
EXPECTED = {"kind": "leak", "holder": ["before", "_optimizer_step_post_hooks", "compare"], "growing": True}

import torch
from torch import nn

layer = nn.Linear(180, 180).cuda()
opt = torch.optim.SGD(layer.parameters(), lr=0.01)
for step in range(60):
    x = torch.randn(40, 180, device="cuda")
    before = layer.weight.detach().clone()  # <- here

    def compare(optimizer, args, kwargs, before=before):
        (layer.weight.detach() - before).norm()

    opt.register_step_post_hook(compare)  # <- here
    loss = layer(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
