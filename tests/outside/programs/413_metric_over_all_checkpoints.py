"""Five checkpoints are evaluated one after the other, without a training. The metric keeps all scores of a checkpoint, and is not reset for the next one. 256 KiB a batch. Pattern: metrics that are never reset."""
EXPECTED = {"kind": "leak", "holder": ["scores", "targets", "ranking", "Ranking"], "growing": True}

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Ranking:
    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.targets = [], []

    def update(self, scores, targets):
        self.scores.append(scores)  # <- here
        self.targets.append(targets)  # <- here

    def compute(self):
        return (torch.cat(self.scores).argmax(-1) == torch.cat(self.targets)).float().mean().item()


loader = DataLoader(TensorDataset(torch.randn(40 * 128, 64), torch.zeros(40 * 128, dtype=torch.long)), batch_size=128)
ranking = Ranking()
results = {}
for number in range(5):
    torch.manual_seed(number)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512)).cuda().eval()
    with torch.inference_mode():
        for x, y in loader:
            ranking.update(model(x.cuda()), y.cuda())
    results[number] = ranking.compute()
print(len(results))
