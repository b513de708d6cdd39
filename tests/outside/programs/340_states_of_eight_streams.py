"""Eight endless streams are trained in turn, each with the state of its last part, detached; the states are in a dict by stream. Pattern: truncated backpropagation over many files."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.rnn, self.out = nn.LSTM(24, dim, num_layers=2, batch_first=True), nn.Linear(dim, 6)

    def forward(self, x, state=None):
        features, state = self.rnn(x, state)
        return self.out(features), state


tagger = Tagger().cuda()
optimizer = torch.optim.RMSprop(tagger.parameters())
states = {}
for part in range(120):
    stream = part % 8
    x = torch.randn(12, 20, 24, device="cuda")
    y = torch.zeros(12 * 20, dtype=torch.long, device="cuda")
    logits, state = tagger(x, states.get(stream))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    states[stream] = tuple(one.detach() for one in state)
print(sorted(states), loss.item())
