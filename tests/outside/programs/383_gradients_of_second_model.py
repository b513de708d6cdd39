"""A critic of the same size as the actor trains beside it with Adam; the first step of the critic's optimizer does not fit. Pattern: PPO with separate networks."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["optimizer", "weights"], "mentions": [["Adam", "optimizer", "8-bit", "foreach"]]}

# A network: 8 x 64 MiB = 512 MiB. Both with gradients: 2048; the actor's moments: 1024. The critic's would need 1024 more.
import torch
from torch import nn


def network():
    return nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.Tanh()) for _ in range(8)]).cuda()


actor, critic = network(), network()
actor_opt = torch.optim.Adam(actor.parameters(), 1e-4, foreach=False)
critic_opt = torch.optim.Adam(critic.parameters(), 1e-4, foreach=False)
for step in range(10):
    x = torch.randn(32, 4096, device="cuda")
    loss = actor(x).square().mean() + critic(x).square().mean()
    loss.backward()
    actor_opt.step()
    critic_opt.step()
    actor_opt.zero_grad()
    critic_opt.zero_grad()
