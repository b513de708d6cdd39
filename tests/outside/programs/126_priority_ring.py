"""Prioritized replay for a small DQN: the ring on the GPU is filled with frames for the first 80 steps, and then its write position wraps around and each new transition takes the place of the oldest one, so the rise stops at the capacity. Source: https://github.com/MishaLaskin/curl/issues/10 - continuously increasing memory was traced to the large capacity of the replay buffer; there was no leak."""
EXPECTED = {"kind": "innocent"}

import copy
from collections import deque

import torch
import torch.nn as nn

CAP, ENVS, N_STEP, GAMMA = 320, 4, 3, 0.97


class Ring:
    def __init__(self, cap):
        self.cap = cap
        self.slots = []
        self.prio = torch.zeros(cap, device="cuda")
        self.at = 0
        self.top = 1.0

    def add(self, transition):
        if len(self.slots) < self.cap:
            self.slots.append(transition)
        else:
            self.slots[self.at] = transition
        self.prio[self.at] = self.top
        self.at = (self.at + 1) % self.cap

    def sample(self, n):
        p = self.prio[: len(self.slots)] ** 0.6
        idx = torch.multinomial(p / p.sum(), n, replacement=True)
        s, a, r, s2 = zip(*(self.slots[i] for i in idx.tolist()))
        return idx, torch.stack(s), torch.tensor(a, device="cuda"), torch.tensor(r, device="cuda"), torch.stack(s2)

    def reprioritize(self, idx, td):
        self.prio[idx] = td + 1e-3
        self.top = max(self.top, float(td.max()))


class QNet(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(4, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.adv = nn.Linear(32 * 36, actions)
        self.val = nn.Linear(32 * 36, 1)

    def forward(self, s):
        h = self.conv(s)
        a = self.adv(h)
        return self.val(h) + a - a.mean(1, keepdim=True)


q = QNet().cuda()
target = copy.deepcopy(q)
opt = torch.optim.Adam(q.parameters(), lr=2.5e-4)
ring = Ring(CAP)
pending = [deque(maxlen=N_STEP) for _ in range(ENVS)]
obs = torch.rand(ENVS, 4, 64, 64, device="cuda")

for t in range(220):
    with torch.no_grad():
        acts = q(obs).argmax(1).tolist()
    nxt = torch.cat([obs[:, 1:], torch.rand(ENVS, 1, 64, 64, device="cuda")], 1)
    for e in range(ENVS):
        pending[e].append((obs[e].clone(), acts[e], float(torch.rand(()))))
        if len(pending[e]) == N_STEP:
            ret = sum(GAMMA ** k * step[2] for k, step in enumerate(pending[e]))
            first = pending[e][0]
            ring.add((first[0], first[1], ret, nxt[e].clone()))
    obs = nxt
    if t < 8:
        continue

    idx, s, a, r, s2 = ring.sample(16)
    with torch.no_grad():
        best = q(s2).argmax(1, keepdim=True)
        y = r + GAMMA ** N_STEP * target(s2).gather(1, best).squeeze(1)
    td = y - q(s).gather(1, a[:, None]).squeeze(1)
    loss = nn.functional.huber_loss(td, torch.zeros_like(td))
    opt.zero_grad()
    loss.backward()
    opt.step()
    ring.reprioritize(idx, td.detach().abs())
    if t % 40 == 0:
        target.load_state_dict(q.state_dict())
        print(f"t={t} stored={len(ring.slots)} loss={loss.item():.4f}")
