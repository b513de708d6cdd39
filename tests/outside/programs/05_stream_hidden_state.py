"""An online predictor: a recurrent cell reads an endless stream and only a readout on the detached state is trained; the state itself is carried to the next step with its graph, which is never back-propagated and so gets longer and longer. Source: https://github.com/pytorch/pytorch/issues/2198 - the answer established that the hidden variable prevents any part of the graph from being freed, and that detaching it cures it."""
EXPECTED = {"kind": "leak", "holder": ["hidden"], "growing": True}

import torch
import torch.nn as nn

device = "cuda"
torch.manual_seed(0)

cell = nn.GRUCell(256, 1024).to(device)
readout = nn.Linear(1024, 32).to(device)
optimizer = torch.optim.Adam(readout.parameters(), lr=1e-3)
criterion = nn.MSELoss()

hidden = torch.zeros(64, 1024, device=device)
running = 0.0
for t in range(100):
    frame = torch.randn(64, 256, device=device)
    target = torch.randn(64, 32, device=device)

    hidden = cell(frame, hidden)  # <- here
    prediction = readout(hidden.detach())
    loss = criterion(prediction, target)

    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    running = 0.9 * running + 0.1 * loss.item()
    if t % 25 == 24:
        print(t + 1, running)
