"""A progress bar has the newest values in its postfix, as tensors, and a mean over the last twenty. Pattern: tqdm with set_postfix."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch
from torch import nn
from tqdm import tqdm

net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
recent = deque(maxlen=20)
with tqdm(range(100), mininterval=5) as bar:
    for _ in bar:
        x = torch.randn(64, 64, device="cuda")
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        recent.append(loss.detach())
        bar.set_postfix(loss=torch.stack(tuple(recent)).mean(), norm=norm, refresh=False)
