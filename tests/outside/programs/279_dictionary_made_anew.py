"""A small trainer has immutable records: with each step a new dictionary is made of the one before and the step's outputs, and the summary reads the last. 64 KiB with a graph a step. Pattern: copy-on-write records."""
EXPECTED = {"kind": "leak", "holder": ["record"], "growing": True}

from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import nn


@dataclass(frozen=True)
class State:
    step: int = 0
    record: MappingProxyType = field(default_factory=lambda: MappingProxyType({}))


net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)).cuda()
opt = torch.optim.Adam(net.parameters())


def advance(state):
    out = net(torch.randn(16, 3, 32, 32, device="cuda"))
    loss = out.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    record = MappingProxyType({**state.record, f"out/{state.step}": out})  # <- here
    return replace(state, step=state.step + 1, record=record)  # <- here


state = State()
while state.step < 80:
    state = advance(state)
print(len(state.record))
