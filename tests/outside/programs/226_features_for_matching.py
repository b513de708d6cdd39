"""A discriminator appends the output of each block to a list on itself, for a feature matching loss; only the last entries are read and nobody clears the list. Pattern: reports about GAN trainings whose memory rises by the same amount each step."""
EXPECTED = {"kind": "leak", "holder": ["features"], "growing": True}

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(256, 256) for _ in range(3)])
        self.score = nn.Linear(256, 1)
        self.features = []

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
            self.features.append(x)  # <- here
        return self.score(x)


maker = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
critic = Critic().cuda()
opt_maker = torch.optim.Adam(maker.parameters(), lr=1e-4)
opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
for step in range(80):
    real = torch.randn(64, 256, device="cuda")
    fake = maker(torch.randn(64, 32, device="cuda"))
    loss = critic(fake.detach()).mean() - critic(real).mean()
    opt_critic.zero_grad()
    loss.backward()
    opt_critic.step()
    critic(real)
    wanted = [feature.detach() for feature in critic.features[-3:]]
    critic(fake)
    loss = sum((a - b).square().mean() for a, b in zip(critic.features[-3:], wanted))
    opt_maker.zero_grad()
    loss.backward()
    opt_maker.step()
