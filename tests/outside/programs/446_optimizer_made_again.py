"""At each epoch the optimizer and its schedule are made again, as the group of the trained layers changes. The trainer has one of each; the old ones are replaced. Pattern: optimizers made again at each stage."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(5)), nn.Linear(256, 3)).cuda()

    def configure(self, epoch):
        for number, layer in enumerate(self.model):
            layer.requires_grad_(number >= 5 - epoch % 5)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.opt = torch.optim.AdamW(trained, lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.opt, 1e-3, total_steps=14)

    def run(self, epochs):
        for epoch in range(epochs):
            self.configure(epoch)
            for _ in range(14):
                loss = self.model(torch.randn(64, 256, device="cuda")).square().mean()
                self.model.zero_grad()
                loss.backward()
                self.opt.step()
                self.schedule.step()


Trainer().run(9)
