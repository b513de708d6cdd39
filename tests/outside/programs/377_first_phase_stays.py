"""A first phase trains a large autoencoder; its trainer object stays in a variable, although only the small encoder is used in the second phase. The second phase does not fit beside it. Pattern: pretraining and fine-tuning in one script."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["leak", "weights"], "holder": ["pretrainer", "Pretrainer"], "growing": False,
            "mentions": [["pretrainer", "Pretrainer", "decoder"]]}

# Phase 1: decoder 12 x 64 MiB, twice that for Adam's moments: 2304 MiB. Phase 2 needs about 1500 MiB for activations.
import torch
from torch import nn


class Pretrainer:
    def __init__(self):
        self.encoder = nn.Linear(4096, 1024).cuda()
        self.decoder = nn.Sequential(nn.Linear(1024, 4096), *[nn.Linear(4096, 4096, bias=False) for _ in range(12)]).cuda()
        self.opt = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], foreach=False)

    def fit(self, steps):
        for _ in range(steps):
            x = torch.randn(64, 4096, device="cuda")
            loss = (self.decoder(self.encoder(x)) - x).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.opt.zero_grad()


pretrainer = Pretrainer()  # <- here
pretrainer.fit(6)
model = nn.Sequential(pretrainer.encoder, nn.ReLU(), *[nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(8)]).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(20):
    loss = model(torch.randn(18_000, 4096, device="cuda")).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
