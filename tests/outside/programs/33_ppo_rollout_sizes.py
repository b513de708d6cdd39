"""PPO whose rollouts are of different length each time (episodes end when they end), the lists of the rollout being new in each iteration; reserved memory jumps now and then, allocated memory does not grow. Source: https://github.com/Khrylx/PyTorch-RL/issues/2 - the reporter found jumps of memory at arbitrary epochs that vanish with empty_cache, i.e. cached blocks and not a leak."""
EXPECTED = {"kind": "innocent"}

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(3)
dev = "cuda"


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(51, 256)
        self.actor = nn.Linear(256, 2)
        self.critic = nn.Linear(256, 1)

    def forward(self, s):
        h = torch.tanh(self.shared(s))
        return self.actor(h), self.critic(h).squeeze(-1)


def collect(net, horizon, n_env=512):
    states, means, rewards, values = [], [], [], []
    s = torch.randn(n_env, 51, device=dev)
    for _ in range(horizon):
        with torch.no_grad():
            mean, v = net(s)
        states.append(s)
        means.append(mean + torch.randn_like(mean))
        values.append(v)
        rewards.append(torch.randn(n_env, device=dev))
        s = torch.randn(n_env, 51, device=dev)
    returns, acc = [], torch.zeros(n_env, device=dev)
    for r in reversed(rewards):
        acc = r + 0.99 * acc
        returns.append(acc)
    returns = torch.cat(returns[::-1])
    return torch.cat(states), torch.cat(means), returns, returns - torch.cat(values)


def gaussian_logp(mean, a):
    return -0.5 * (a - mean).pow(2).sum(-1)


net = ActorCritic().to(dev)
opt = torch.optim.Adam(net.parameters(), lr=3e-4)
for iteration in range(25):
    s, a, ret, adv = collect(net, horizon=random.randint(10, 40))
    with torch.no_grad():
        old = gaussian_logp(net(s)[0], a)
    for epoch in range(4):
        mean, v = net(s)
        ratio = (gaussian_logp(mean, a) - old).exp()
        policy_loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss = policy_loss + 0.5 * F.mse_loss(v, ret)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if iteration % 5 == 0:
        print(iteration, len(s), torch.cuda.memory_reserved() >> 20)
