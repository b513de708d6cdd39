"""An evaluator object is made once and gathers logits on the device in each evaluation; its reset is never called. Pattern: metric objects that need a reset between evaluations."""
EXPECTED = {"kind": "leak", "holder": ["all_logits", "Evaluator", "evaluator"], "growing": True}

import torch
from torch import nn


class Evaluator:
    def __init__(self):
        self.all_logits = []

    def update(self, logits):
        self.all_logits.append(logits)  # <- here

    def reset(self):
        self.all_logits = []

    def accuracy(self):
        return torch.cat(self.all_logits).argmax(1).float().mean().item()


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1000)).cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
evaluator = Evaluator()
for step in range(120):
    x = torch.randn(128, 64, device="cuda")
    loss = nn.functional.cross_entropy(model(x), torch.randint(0, 1000, (128,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 9:
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                evaluator.update(model(torch.randn(128, 64, device="cuda")))
        model.train()
        print(step, evaluator.accuracy())
