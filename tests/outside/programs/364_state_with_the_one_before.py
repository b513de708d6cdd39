"""A filter's state is a NamedTuple which has the state of the step before as a field, although only one step back is ever read. The tensors are detached. 64 KiB a step. Pattern: functional training loops with immutable states."""
EXPECTED = {"kind": "leak", "holder": ["state", "before", "State"], "growing": True}

from typing import NamedTuple

import torch
from torch import nn


class State(NamedTuple):
    step: int
    belief: torch.Tensor
    before: "State | None"


net = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=3e-4)
state = State(0, torch.zeros(256, 64, device="cuda"), None)
for step in range(1, 90):
    seen = torch.randn(256, 64, device="cuda")
    previous = state.before.belief if state.before else state.belief
    belief = net(0.5 * (seen + state.belief) - 0.1 * previous)
    loss = (belief - seen).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    state = State(step, belief.detach(), state)  # <- here
