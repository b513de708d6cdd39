"""Five folds, each with a model of its own. Of a fold its losses stay as numbers, its predictions as arrays of the host, and the best weights so far as copies on the host. Pattern: cross-validation."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

data = torch.randn(500, 50, device="cuda")
history, predictions, best = [], {}, (float("inf"), None)
for fold in range(5):
    rows = torch.arange(500, device="cuda") % 5 == fold
    rest = data[torch.arange(500) % 5 != fold]
    model = nn.Sequential(nn.Linear(50, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    opt = torch.optim.Adam(model.parameters())
    for step in range(24):
        loss = model(rest[(step * 16) % 384 : (step * 16) % 384 + 16]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append((fold, loss.item()))
    with torch.no_grad():
        predictions[fold] = model(data[:100]).cpu().numpy()
    if history[-1][1] < best[0]:
        best = (history[-1][1], {name: value.cpu() for name, value in model.state_dict().items()})
print(len(history), rows.dtype)
