"""Q-learning on the device: a ring that is allocated at the start, a window of five steps for returns, a target network that follows softly. Pattern: n-step replay."""
EXPECTED = {"kind": "innocent"}

import copy
from collections import deque

import torch
from torch import nn


class Ring:
    def __init__(self, room, width):
        self.before, self.after = torch.zeros(room, width, device="cuda"), torch.zeros(room, width, device="cuda")
        self.reward, self.room, self.count = torch.zeros(room, device="cuda"), room, 0

    def put(self, before, reward, after):
        at = torch.arange(self.count, self.count + len(before), device="cuda") % self.room
        self.before[at], self.reward[at], self.after[at] = before, reward, after
        self.count += len(before)

    def draw(self, number):
        at = torch.randint(0, min(self.count, self.room), (number,), device="cuda")
        return self.before[at], self.reward[at], self.after[at]


net = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 6)).cuda()
target = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.Adam(net.parameters(), 1e-3)
ring, window = Ring(20_000, 24), deque(maxlen=5)
state = torch.randn(64, 24, device="cuda")
for step in range(150):
    with torch.no_grad():
        action = net(state).argmax(1)
    after, reward = state.roll(1, 1) + 0.1 * action.unsqueeze(1), torch.randn(64, device="cuda")
    window.append((state, reward))
    if len(window) == window.maxlen:
        ring.put(window[0][0], sum(0.99**n * part for n, (_, part) in enumerate(window)), after)
        before, returns, later = ring.draw(128)
        goal = returns + 0.95 * target(later).max(1).values
        loss = nn.functional.smooth_l1_loss(net(before).max(1).values, goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for mine, its in zip(target.parameters(), net.parameters()):
                mine.lerp_(its, 0.01)
    state = after if step % 25 else torch.randn(64, 24, device="cuda")
