"""After each epoch the weights are copied into a list, to choose among them at the end. Pattern: deepcopy(model.state_dict()) on the device."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["leak", "weights"], "holder": ["states", "state"],
            "mentions": [["states", "copies", "copy"]]}

import copy

import torch
from torch import nn

net = nn.Sequential(*[nn.Linear(3072, 3072) for _ in range(6)]).cuda()
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
states = []
for epoch in range(20):
    for _ in range(4):
        loss = net(torch.randn(64, 3072, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    states.append(copy.deepcopy(net.state_dict()))  # <- here
