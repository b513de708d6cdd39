"""A loss class is made again for each step with that step's targets as an attribute; its metaclass registers all classes by name. 40 KiB a step. Pattern: registries in metaclasses, filled by classes that the program makes."""
EXPECTED = {"kind": "leak", "holder": ["known", "Registered"], "growing": True}

import torch
from torch import nn


class Registered(type):
    known = {}

    def __new__(cls, name, bases, members):
        made = super().__new__(cls, name, bases, members)
        cls.known[name] = made  # <- here
        return made


class Loss(metaclass=Registered):
    targets = None

    def __call__(self, out):
        return (out - self.targets).square().mean()


net = nn.Sequential(nn.Linear(20, 80), nn.ReLU(), nn.Linear(80, 80)).cuda()
opt = torch.optim.Adagrad(net.parameters(), lr=0.01)
for step in range(84):
    x = torch.randn(128, 20, device="cuda")
    criterion = Registered(f"Loss{step}", (Loss,), {"targets": x.repeat(1, 4)})()  # <- here
    loss = criterion(net(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
