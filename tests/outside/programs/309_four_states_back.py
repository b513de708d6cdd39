"""Truncated backpropagation with a window: the last four states stay in a queue, each a leaf with the output that came of it; at every fourth step the backward goes through these four steps by hand. Pattern: TBPTT with two lengths."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch
from torch import nn

cell, head = nn.GRUCell(32, 128).cuda(), nn.Linear(128, 32).cuda()
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05)
states = deque(maxlen=4)
state = torch.zeros(64, 128, device="cuda")
for step in range(150):
    x = torch.randn(64, 32, device="cuda")
    before = state.detach().requires_grad_()
    after = cell(x, before)
    states.append((before, after))
    state = after
    if step % 4 == 3:
        loss = (head(after) - x).square().mean()
        opt.zero_grad()
        loss.backward(retain_graph=True)
        slope = before.grad
        for earlier, result in list(states)[-2::-1]:
            if slope is None:
                break
            earlier.grad = None
            result.backward(slope, retain_graph=True)
            slope = earlier.grad
        opt.step()
        state = after.detach()
