"""A replay memory with room for 48 transitions' batches on the GPU, filled in the first half of the training, then overwritten. Right: bounded."""
EXPECTED = {"kind": "innocent"}

import random
from collections import deque

import torch
from torch import nn

q = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 6)).cuda()
target = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 6)).cuda()
target.load_state_dict(q.state_dict())
memory = deque(maxlen=48)
opt = torch.optim.Adam(q.parameters())
for step in range(150):
    with torch.no_grad():
        s = torch.randn(512, 32, device="cuda")
        a = q(s).argmax(1)
        memory.append((s, a, torch.randn(512, device="cuda"), torch.randn(512, 32, device="cuda")))
    s, a, r, s2 = random.choice(memory)
    with torch.no_grad():
        goal = r + 0.99 * target(s2).amax(1)
    loss = (q(s).gather(1, a[:, None])[:, 0] - goal).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 29:
        target.load_state_dict(q.state_dict())
