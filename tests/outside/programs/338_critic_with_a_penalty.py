"""A critic takes five steps for one of the generator, each with a gradient penalty; the losses of a round are in lists that are made again for each round. Pattern: WGAN-GP."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


def penalty(critic, real, fake):
    share = torch.rand(len(real), 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)).cuda()
critic = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).cuda()
g_opt = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
c_opt = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
for round_ in range(25):
    critic_losses, penalties = [], []
    for _ in range(5):
        real, noise = torch.randn(64, 32, device="cuda"), torch.randn(64, 16, device="cuda")
        fake = generator(noise).detach()
        gp = penalty(critic, real, fake)
        loss = critic(fake).mean() - critic(real).mean() + 10 * gp
        c_opt.zero_grad()
        loss.backward()
        c_opt.step()
        critic_losses.append(loss.detach())
        penalties.append(gp.detach())
    g_loss = -critic(generator(torch.randn(64, 16, device="cuda"))).mean()
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
    if round_ % 5 == 0:
        print(round_, torch.stack(critic_losses).mean().item(), torch.stack(penalties).mean().item())
