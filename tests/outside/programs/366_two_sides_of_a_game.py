"""A GAN with two optimizers: each callback gets the outputs of the step, and the trainer appends them to the record of the epoch, of which there is only one. The fakes have the generator's graph. Pattern: a trainer of one's own with callbacks."""
EXPECTED = {"kind": "leak", "holder": ["outputs", "record", "fakes"], "growing": True}

import torch
from torch import nn


class Printer:
    def on_step_end(self, trainer, outputs):
        if trainer.step % 40 == 0:
            print(trainer.step, float(outputs["d"]), float(outputs["g"]))


class Trainer:
    def __init__(self, *callbacks):
        self.callbacks, self.step, self.record = callbacks, 0, {"outputs": []}
        self.make = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
        self.judge = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)).cuda()
        self.opt_g = torch.optim.Adam(self.make.parameters(), 2e-4, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.judge.parameters(), 2e-4, betas=(0.5, 0.999))

    def training_step(self, real):
        fakes = self.make(torch.randn(len(real), 32, device="cuda"))
        d = nn.functional.softplus(-self.judge(real)).mean() + nn.functional.softplus(self.judge(fakes.detach())).mean()
        self.opt_d.zero_grad()
        d.backward()
        self.opt_d.step()
        g = nn.functional.softplus(-self.judge(fakes)).mean()
        self.opt_g.zero_grad()
        g.backward()
        self.opt_g.step()
        return {"d": d.detach(), "g": g.detach(), "fakes": fakes}

    def fit(self, steps):
        for self.step in range(steps):
            outputs = self.training_step(torch.randn(256, 64, device="cuda"))
            self.record["outputs"].append(outputs)  # <- here
            for callback in self.callbacks:
                callback.on_step_end(self, outputs)


Trainer(Printer()).fit(80)
