"""Sequences get longer every 15 steps, as a curriculum says. The model keeps a table of positions, and a mask for each length that was used. Both belong to the lengths. Pattern: curricula."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(500, width), nn.Linear(width, 3 * width), nn.Linear(width, 500)
        self.positions, self.masks = None, {}

    def forward(self, tokens):
        length = tokens.shape[1]
        if self.positions is None or len(self.positions) < length:
            self.positions = torch.randn(length, self.embed.embedding_dim, device=tokens.device)
        if length not in self.masks:
            self.masks[length] = torch.full((length, length), -1e9, device=tokens.device).triu(1)
        x = self.embed(tokens) + self.positions[:length]
        q, k, v = self.mix(x).chunk(3, -1)
        return self.head((q @ k.transpose(-2, -1) + self.masks[length]).softmax(-1) @ v)


model = Decoder().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(120):
    length = 32 + 32 * (step // 15)
    tokens = torch.randint(0, 500, (8, length + 1), device="cuda")
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
