"""Each attention layer appends its weights to a list that a figure reads after the training. Pattern: attention maps saved in forward."""
EXPECTED = {"kind": "leak", "holder": ["maps"], "growing": True}

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.maps = []

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5).softmax(-1)
        self.maps.append(weights)  # <- here
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, t, d))


class Encoder(nn.Module):
    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(Attention(dim, 4) for _ in range(depth))
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


encoder = Encoder().cuda()
optimizer = torch.optim.Adam(encoder.parameters())
for epoch in range(2):
    for batch in range(40):
        out = encoder(torch.randn(8, 24, 32, device="cuda"))
        loss = nn.functional.cross_entropy(out, torch.zeros(8, dtype=torch.long, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
