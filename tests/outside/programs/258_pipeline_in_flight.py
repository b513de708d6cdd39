"""An asynchronous pipeline written by hand: the backward of a batch runs three steps after its forward, with weights that were updated meanwhile, so three graphs are always in flight. Pattern: PipeDream."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch
from torch import nn

first, second = nn.Linear(64, 128).cuda(), nn.Linear(128, 64).cuda()
opt_first = torch.optim.SGD(first.parameters(), lr=0.01)
opt_second = torch.optim.SGD(second.parameters(), lr=0.01)
in_flight = deque()
for step in range(90):
    x = torch.randn(128, 64, device="cuda")
    sent = first(x)
    in_flight.append((x, sent))
    if len(in_flight) > 3:
        target, sent = in_flight.popleft()
        arrived = sent.detach().requires_grad_()
        loss = (second(torch.relu(arrived)) - target).square().mean()
        opt_second.zero_grad()
        loss.backward()
        opt_second.step()
        opt_first.zero_grad()
        sent.backward(arrived.grad)
        opt_first.step()
