"""Every 15 steps an evaluation collects logits in a list, joins them and stores two numbers under the step; the last predictions stay, for a confusion matrix. Pattern: evaluation in a class."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Evaluator:
    def __init__(self, data):
        self.data, self.scores, self.predicted = data, {}, None

    @torch.no_grad()
    def run(self, net, step):
        net.eval()
        logits = []
        for x in self.data.split(50):
            logits.append(net(x))
        logits = torch.cat(logits)
        self.predicted = logits.argmax(-1)
        self.scores[step] = {"entropy": -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean().item(),
                             "largest": logits.max().item()}
        net.train()


net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 20)).cuda()
optimizer = torch.optim.Adam(net.parameters())
evaluator = Evaluator(torch.randn(400, 64, device="cuda"))
for step in range(95):
    loss = nn.functional.cross_entropy(net(torch.randn(80, 64, device="cuda")), torch.zeros(80, dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 14:
        evaluator.run(net, step)
print(len(evaluator.scores))
