"""Truncated backpropagation: of an LSTM's state the output is detached, the cell is not; the error that came of it was silenced with retain_graph. Pattern: half of the state is detached."""
EXPECTED = {"kind": "leak", "holder": ["state", "cell"], "growing": True}

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.cell = nn.LSTMCell(32, 64)
        self.out = nn.Linear(64, 100)

    def forward(self, tokens, state):
        logits = []
        for column in self.embed(tokens).unbind(1):
            state = self.cell(column, state)
            logits.append(self.out(state[0]))
        return (torch.stack(logits, 1), state)


reader = Reader().cuda()
opt = torch.optim.SGD(reader.parameters(), lr=0.5)
state = (torch.zeros(16, 64, device="cuda"), torch.zeros(16, 64, device="cuda"))
for chunk in range(48):
    tokens = torch.randint(0, 100, (16, 9), device="cuda")
    logits, state = reader(tokens[:, :-1], (state[0].detach(), state[1]))  # <- here
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    opt.zero_grad()
    loss.backward(retain_graph=True)  # <- here
    with torch.no_grad():
        for weight in reader.parameters():
            weight.data = weight.data - 0.5 * weight.grad
