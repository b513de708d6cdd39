"""A curriculum: sequences get 8 tokens longer every ten steps, up to the end. Only numbers are kept. Pattern: length curriculum of a language model."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, words=500, dim=64):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(words, dim), nn.GRU(dim, dim, batch_first=True), nn.Linear(dim, words)

    def forward(self, ids):
        return self.out(self.rnn(self.words(ids))[0])


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters())
history = {"length": [], "loss": []}
length = 8
for step in range(100):
    if step and step % 10 == 0:
        length += 8
    ids = torch.zeros(16, length + 1, dtype=torch.long, device="cuda")
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    history["length"].append(length)
    history["loss"].append(loss.item())
print(history["length"][-1], history["loss"][-1])
