"""REINFORCE: the policy gets better, so that episodes get longer, from 8 to 64 moves; what was saved is deleted after each update. Pattern: the cart pole example."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 128), nn.Linear(128, 2)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        return torch.log_softmax(self.two(torch.relu(self.one(x))), -1)


def finish(policy, opt):
    returns = torch.tensor(policy.rewards, device="cuda").flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(policy.saved_log_probs) * returns).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


policy = Policy().cuda()
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(60):
    for move in range(8 + episode):
        policy.saved_log_probs.append(policy(torch.randn(4, 16, device="cuda"))[:, 0].mean())
        policy.rewards.append(1.0)
    finish(policy, opt)
