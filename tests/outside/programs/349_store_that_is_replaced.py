"""A rollout store is filled by 16 steps of the policy without gradients, is trained on for 4 updates, and is then replaced by a new one. Pattern: PPO."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Rollout:
    def __init__(self):
        self.states, self.actions, self.log_probs, self.values = [], [], [], []

    def add(self, *values):
        for store, value in zip((self.states, self.actions, self.log_probs, self.values), values):
            store.append(value)

    def joined(self):
        return [torch.cat(store) for store in (self.states, self.actions, self.log_probs, self.values)]


body = nn.Sequential(nn.Linear(32, 64), nn.Tanh()).cuda()
policy, value = nn.Linear(64, 6).cuda(), nn.Linear(64, 1).cuda()
optimizer = torch.optim.Adam([*body.parameters(), *policy.parameters(), *value.parameters()], lr=3e-4)
for iteration in range(25):
    rollout, state = Rollout(), torch.randn(64, 32, device="cuda")
    with torch.no_grad():
        for _ in range(16):
            features = body(state)
            log_p = policy(features).log_softmax(-1)
            action = log_p.argmax(-1)
            rollout.add(state, action, log_p.gather(1, action[:, None]), value(features))
            state = 0.9 * state + 0.1 * torch.randn_like(state)
    states, actions, old, values = rollout.joined()
    for _ in range(4):
        features = body(states)
        log_p = policy(features).log_softmax(-1).gather(1, actions[:, None])
        ratio = (log_p - old).exp()
        loss = -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean() + (value(features) - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
