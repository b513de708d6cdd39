"""Before the real training a self-test of a big configuration is run, which fails; the program keeps the exception for its final report, and through the traceback also the failed run's model and activations, for the whole training (constant). Source: https://github.com/pytorch/pytorch/issues/27600 - albanD established that an exception holds the frames where it was raised and they hold all tensors, so empty_cache cannot help (likewise /issues/10348)."""
EXPECTED = {"kind": "leak", "holder": ["last_error", "traceback", "RuntimeError", "error"], "growing": False}

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_mlp(width, n_layers, n_out=10):
    layers = []
    for _ in range(n_layers):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, n_out)).cuda()


def self_test(width, n_layers, batch):
    net = make_mlp(width, n_layers)
    x = torch.randn(batch, width, device="cuda")
    y = torch.zeros(batch - 1, dtype=torch.long, device="cuda")   # off by one: the bug being reported
    out = net(x)
    if out.shape[0] != y.shape[0]:
        raise RuntimeError(f"{out.shape[0]} predictions for {y.shape[0]} labels")
    return F.cross_entropy(out, y).item()


last_error = None
try:
    self_test(width=1024, n_layers=6, batch=4096)
except RuntimeError as err:
    last_error = err  # <- here
torch.cuda.empty_cache()

model = make_mlp(512, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for step in range(90):
    xb = torch.randn(256, 512, device="cuda")
    yb = torch.zeros(256, dtype=torch.long, device="cuda")
    optimizer.zero_grad()
    loss = F.cross_entropy(model(xb), yb)
    loss.backward()
    optimizer.step()
    history.append(loss.item())

print("final loss", history[-1])
print("self-test said:", last_error)
