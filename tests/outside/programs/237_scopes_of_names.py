"""Intermediate values are put into a ChainMap by name, with a child for each step; the children of all steps stay below the newest. 48 KiB a step. Pattern: nested scopes that are entered and not left."""
EXPECTED = {"kind": "leak", "holder": ["scope", "maps"], "growing": True}

from collections import ChainMap

import torch
from torch import nn

encoder, decoder = nn.Linear(64, 96).cuda(), nn.Linear(96, 64).cuda()
opt = torch.optim.NAdam([*encoder.parameters(), *decoder.parameters()])
scope = ChainMap({"rate": 0.1})
for step in range(80):
    scope = scope.new_child()  # <- here
    x = torch.randn(128, 64, device="cuda")
    code = torch.tanh(encoder(x))
    scope["code"] = code.detach()  # <- here
    loss = (decoder(code) - x).square().mean() * scope["rate"]
    opt.zero_grad()
    loss.backward()
    opt.step()
