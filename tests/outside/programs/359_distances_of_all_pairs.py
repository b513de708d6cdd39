"""Between two epochs, without gradients, the distances of all pairs of embeddings are computed for a plot; there are too many. Pattern: a t-SNE in the training script."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["data", "input", "activations"],
            "mentions": [["359_distances"]]}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
for epoch in range(3):
    kept = []
    for _ in range(20):
        out = net(torch.randn(2000, 128, device="cuda"))
        loss = out.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        kept.append(out.detach())
    embeddings = torch.cat(kept)
    distances = torch.cdist(embeddings, embeddings)  # <- here
    print(epoch, distances.shape)
