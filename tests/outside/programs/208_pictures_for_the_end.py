"""Drawing is put off to the end of the training: every few steps a callable with the generated pictures inside is appended to a list. Pattern: callbacks made with functools.partial."""
EXPECTED = {"kind": "leak", "holder": ["at_end", "partial"], "growing": True}

import functools

import torch
from torch import nn


def draw(step, pictures):
    return step, pictures.mean().item()


class Painter:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 3 * 32 * 32), nn.Tanh()).cuda()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.at_end = []

    def step(self, number):
        fake = self.net(torch.randn(64, 32, device="cuda"))
        loss = fake.square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        if number % 4 == 0:
            self.at_end.append(functools.partial(draw, number, fake.detach()))  # <- here


painter = Painter()
for number in range(160):
    painter.step(number)
print([call()[0] for call in painter.at_end][-1])
