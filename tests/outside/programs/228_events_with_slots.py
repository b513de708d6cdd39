"""A small trainer sends events to listeners; the bus also notes each event, with the batch"s logits in it, for a debug view. 20 KiB of logits with their graph a step. Pattern: event buses with a log."""
EXPECTED = {"kind": "leak", "holder": ["past", "bus"], "growing": True}

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(slots=True, frozen=True)
class Event:
    name: str
    step: int
    payload: object


class Bus:
    __slots__ = ("listeners", "past")

    def __init__(self):
        self.listeners, self.past = [], []

    def send(self, event):
        self.past.append(event)  # <- here
        for listener in self.listeners:
            listener(event)


class Printer:
    def __call__(self, event):
        if event.step % 40 == 0:
            print(event.name, event.step)


bus = Bus()
bus.listeners.append(Printer())
model = nn.Sequential(nn.Conv1d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30, 40)).cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(80):
    x = torch.randn(128, 8, 32, device="cuda")
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 40, (128,), device="cuda"))
    loss.backward()
    opt.step()
    opt.zero_grad()
    bus.send(Event("batch", step, logits))
