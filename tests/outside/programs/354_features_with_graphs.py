"""Features of a frozen dataset are extracted before the training, with gradients on: each of them keeps the activations of its batch. Pattern: feature extraction without no_grad."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["leak", "activations", "evaluation"],
            "mentions": [["no_grad", "detach", "features"]]}

# Each batch keeps 6 x 2 x 256 x 4096 floats = 48 MiB; 3.4 GiB are full after about 70 of 120 batches.
import torch
from torch import nn

backbone = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(6)]).cuda()
backbone.eval()
features = []
for batch in range(120):
    features.append(backbone(torch.randn(256, 4096, device="cuda")))  # <- here
head = nn.Linear(4096, 10).cuda()
opt = torch.optim.Adam(head.parameters())
for one in features:
    loss = head(one.detach()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
