"""A Transformer-XL: each layer attends to the states of past segments, detached, of which the last 1024 are kept; 16 come with each step. Right: the memory is full after 64 steps. Pattern: segment recurrence."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, past):
        k, v = self.kv(torch.cat([past, x], 1)).chunk(2, -1)
        return x + self.out(nn.functional.scaled_dot_product_attention(self.q(x), k, v))


class Net(nn.Module):
    def __init__(self, width=64, layers=3, memory=1024):
        super().__init__()
        self.memory = memory
        self.embed = nn.Embedding(200, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 200)

    def forward(self, tokens, memories):
        x, news = self.embed(tokens), []
        for layer, past in zip(self.layers, memories):
            news.append(torch.cat([past, x.detach()], 1)[:, -self.memory :])
            x = layer(x, past)
        return self.head(x), news


net = Net().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
memories = [torch.empty(8, 0, 64, device="cuda") for _ in net.layers]
for step in range(110):
    tokens = torch.zeros(8, 16, dtype=torch.long, device="cuda")
    logits, memories = net(tokens, memories)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
