"""Before each validation a hook is put on the encoder to collect features for a plot; it is never removed, and each of the collectors keeps on collecting in training too. Pattern: feature extraction helpers that do not return the handle."""
EXPECTED = {"kind": "leak", "holder": ["features", "collect", "hook", "watch"], "growing": True}

import torch
from torch import nn


def watch(module):
    features = []

    def collect(mod, args, out):
        features.append(out.detach())  # <- here

    module.register_forward_hook(collect)  # <- here
    return features


net = nn.ModuleDict({"encoder": nn.Linear(100, 256), "head": nn.Linear(256, 10)}).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def forward(x):
    return net["head"](torch.relu(net["encoder"](x)))


for epoch in range(6):
    for _ in range(15):
        loss = forward(torch.randn(200, 100, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    found = watch(net["encoder"])
    with torch.no_grad():
        for _ in range(3):
            forward(torch.randn(200, 100, device="cuda"))
    print(epoch, sum(len(f) for f in found))
    net.train()
