"""Policy gradient by hand: rewards are cleared after each episode, the log probabilities are not; the loss zips both from the end. Pattern: copies of a well-known example in which one of two del statements was lost."""
EXPECTED = {"kind": "leak", "holder": ["saved_log_probs"], "growing": True}

import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 4))
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return self.net(x).softmax(-1)


policy = Policy().cuda()
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)


def act(state):
    choice = Categorical(policy(state), validate_args=False)
    action = choice.sample()
    policy.saved_log_probs.append(choice.log_prob(action))  # <- here
    return action


def finish_episode():
    total, returns = 0.0, []
    for reward in reversed(policy.rewards):
        total = reward + 0.99 * total
        returns.insert(0, total)
    recent = policy.saved_log_probs[-len(returns):]
    loss = torch.stack([-log_prob.mean() * value for log_prob, value in zip(recent, returns)]).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del policy.rewards[:]


for episode in range(60):
    state = torch.randn(64, 8, device="cuda")
    for _ in range(12):
        act(state)
        state = torch.randn(64, 8, device="cuda")
        policy.rewards.append(1.0)
    finish_episode()
