"""Truncated backpropagation without the truncation: the state of a recurrent network is not detached, and the update waits for the end of each document. Pattern: language models on long streams."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["leak", "activations"], "holder": ["memory", "state"], "mentions": [["detach"]]}

import torch
from torch import nn

cell = nn.GRUCell(256, 1024).cuda()
head = nn.Linear(1024, 256).cuda()
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
state = torch.zeros(512, 1024, device="cuda")
running = 0.0
for t in range(2000):
    x = torch.randn(512, 256, device="cuda")
    state = cell(x, state)
    loss = head(state).square().mean()
    running = running + loss
    if t % 20 == 19:
        grads = torch.autograd.grad(loss, list(head.parameters()), retain_graph=True)
        for p, g in zip(head.parameters(), grads):
            p.grad = g
        opt.step()
        opt.zero_grad()
