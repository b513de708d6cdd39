"""Truncated backpropagation over a long series: the state goes on from chunk to chunk, detached, and starts at zero with each new series. Right: one state."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

rnn = nn.LSTM(32, 256, batch_first=True).cuda()
head = nn.Linear(256, 1).cuda()
opt = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-3)
for series in range(6):
    values = torch.randn(32, 20 * 25, 32, device="cuda")
    state = None
    for chunk in values.split(25, 1):
        out, state = rnn(chunk, state)
        state = tuple(part.detach() for part in state)
        loss = (head(out).squeeze(-1) - chunk.mean(-1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(series, loss.item())
