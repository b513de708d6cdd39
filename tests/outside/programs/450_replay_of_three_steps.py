"""Three steps of each environment wait in a deque until their sum of rewards is known. Then they go into tensors that were made at the start and are overwritten round by round. Pattern: n-step replay on the device."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch
from torch import nn

ROOM = 4096
store = {"state": torch.zeros(ROOM, 48, device="cuda"), "value": torch.zeros(ROOM, device="cuda")}
pending = deque(maxlen=3)
q = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 6)).cuda()
target = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 6)).cuda().requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=1e-4)
at, filled = 0, 0
for step in range(140):
    state = torch.randn(64, 48, device="cuda")
    with torch.no_grad():
        q(state).argmax(-1)
    pending.append((state, torch.randn(64, device="cuda")))
    if len(pending) == 3:
        store["state"][at : at + 64] = pending[0][0]
        store["value"][at : at + 64] = sum(0.99**n * one[1] for n, one in enumerate(pending))
        at, filled = (at + 64) % ROOM, min(filled + 64, ROOM)
    if filled >= 256:
        rows = torch.randint(0, filled, (128,), device="cuda")
        with torch.no_grad():
            wanted = store["value"][rows] + 0.97 * target(store["state"][rows]).max(-1).values
        loss = (q(store["state"][rows]).max(-1).values - wanted).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if step % 40 == 39:
        target.load_state_dict(q.state_dict())
