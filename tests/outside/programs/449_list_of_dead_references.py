"""A leak check of the user's own: weak references to the activations of each step go into a list, and the living are counted now and then. The list grows, the tensors do not live. Pattern: weakref checks."""
EXPECTED = {"kind": "innocent"}

import weakref

import torch
from torch import nn

model = nn.Sequential(nn.Linear(96, 400), nn.ReLU(), nn.Linear(400, 5)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
references, sizes = [], {}
for step in range(120):
    hidden = model[:2](torch.randn(200, 96, device="cuda"))
    references.append(weakref.ref(hidden))
    sizes[step] = hidden.numel()
    loss = model[2](hidden).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 29:
        print(step, sum(one() is not None for one in references))
