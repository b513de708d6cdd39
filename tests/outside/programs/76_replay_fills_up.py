"""Off-policy learning with a replay memory on the GPU: memory rises step by step until the replay has reached its capacity, and is flat from then on. Source: https://github.com/MishaLaskin/curl/issues/10 - the steady rise was the replay buffer filling up to its capacity, not a leak."""
EXPECTED = {"kind": "innocent", "memory": "3G"}

# Arithmetic: a rollout is 64 x 9 x 84 x 84 frames x 4 bytes = 15.5 MiB, kept with the next frames: 31 MiB. The replay keeps the
# last 40 rollouts = 1240 MiB of 2642 MiB; 100 rollouts are made, so the rise ends after 40 and the old ones go.
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class Replay:
    def __init__(self, capacity):
        self.rollouts = deque(maxlen=capacity)

    def push(self, *item):
        self.rollouts.append(item)

    def sample(self):
        return random.choice(self.rollouts)

    def __len__(self):
        return len(self.rollouts)


class Critic(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(9, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU())
        self.q = nn.Linear(32 * 20 * 20, actions)

    def forward(self, frames):
        return self.q(self.conv(frames).flatten(1))


critic, target = Critic().cuda(), Critic().cuda()
target.load_state_dict(critic.state_dict())
opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
replay = Replay(capacity=40)
for step in range(100):
    with torch.no_grad():
        frames = torch.rand(64, 9, 84, 84, device="cuda")
        action = critic(frames).argmax(1)
        following = torch.rand(64, 9, 84, 84, device="cuda")
        reward = torch.rand(64, device="cuda")
    replay.push(frames, action, reward, following)
    if len(replay) < 5:
        continue
    s, a, r, s2 = replay.sample()
    with torch.no_grad():
        goal = r + 0.99 * target(s2).max(1).values
    loss = F.smooth_l1_loss(critic(s).gather(1, a[:, None]).squeeze(1), goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        target.load_state_dict(critic.state_dict())
        print("step", step, "replay", len(replay), "loss", loss.item())
