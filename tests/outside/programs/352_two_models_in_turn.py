"""Two networks teach each other in turn; each step keeps the other's last output, detached, in a dict under the network's name. Pattern: mutual learning."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


def student():
    return nn.Sequential(nn.Linear(80, 160), nn.ReLU(), nn.Linear(160, 30)).cuda()


students = {"a": student(), "b": student()}
optimizers = {name: torch.optim.Adam(net.parameters()) for name, net in students.items()}
outputs = {}
for step in range(100):
    x = torch.randn(128, 80, device="cuda")
    for name, other in (("a", "b"), ("b", "a")):
        logits = students[name](x)
        loss = nn.functional.cross_entropy(logits, torch.zeros(128, dtype=torch.long, device="cuda"))
        if other in outputs:
            loss = loss + nn.functional.kl_div(logits.log_softmax(-1), outputs[other].softmax(-1), reduction="batchmean")
        optimizers[name].zero_grad()
        loss.backward()
        optimizers[name].step()
        outputs[name] = logits.detach()
print(loss.item())
