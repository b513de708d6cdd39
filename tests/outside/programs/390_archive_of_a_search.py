"""A network is searched by an evolution strategy, without any gradient. All candidates of all generations stay in an archive on the device, of which only the best is used. 8 x 65 KiB a generation. Pattern: evolution strategies."""
EXPECTED = {"kind": "leak", "holder": ["archive"], "growing": True}

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

policy = nn.Sequential(nn.Linear(24, 128), nn.Tanh(), nn.Linear(128, 100)).cuda().requires_grad_(False)
mean = parameters_to_vector(policy.parameters()).clone()
archive = []
for generation in range(90):
    scores, noises = [], []
    for member in range(8):
        candidate = mean + 0.02 * torch.randn_like(mean)
        vector_to_parameters(candidate, policy.parameters())
        score = -policy(torch.randn(32, 24, device="cuda")).square().mean()
        archive.append((score, candidate))  # <- here
        scores.append(score)
        noises.append(candidate - mean)
    ranks = torch.stack(scores).softmax(0)
    mean = mean + sum(rank * noise for rank, noise in zip(ranks, noises))
print(len(archive))
