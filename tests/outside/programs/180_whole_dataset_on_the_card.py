"""All images are moved to the GPU before the training, as floats. Pattern: data sets that fitted as bytes."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["data", "input"], "holder": ["images", "shards"]}

import torch
from torch import nn

model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 512), nn.ReLU(), nn.Linear(512, 200)).cuda()
images = []
for shard in range(100):
    part = torch.randint(0, 255, (1000, 3, 64, 64), dtype=torch.uint8)
    images.append(part.cuda().float())
opt = torch.optim.Adam(model.parameters())
for shard in images:
    for x in shard.split(100):
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
