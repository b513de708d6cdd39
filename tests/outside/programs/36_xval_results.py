"""Cross-validation of a tagger: the evaluator returns a result with all predictions and labels as GPU tensors, and the list of results keeps them from fold to fold although only the scores are needed. Source: https://github.com/deepset-ai/FARM/issues/544 - the maintainer established that the predictions and labels in the result variable are kept between the folds and occupy GPU memory."""
EXPECTED = {"kind": "leak", "holder": ["all_results", "preds", "labels", "result"], "growing": True}

import torch
from torch import nn
import torch.nn.functional as F


class Evaluator:
    def __init__(self, batches, device):
        self.batches, self.device = batches, device

    @torch.no_grad()
    def eval(self, model):
        preds, labels = [], []
        for _ in range(self.batches):
            x = torch.randn(32, 128, 64, device=self.device)
            preds.append(model(x))
            labels.append(torch.zeros(32, 128, dtype=torch.long, device=self.device))
        preds, labels = torch.cat(preds), torch.cat(labels)
        return {
            "f1": (preds.argmax(-1) == labels).float().mean().item(),
            "preds": preds,
            "labels": labels,
        }


class TokenTagger(nn.Module):
    def __init__(self, n_labels=96):
        super().__init__()
        self.a = nn.Linear(64, 256)
        self.b = nn.Linear(256, n_labels)

    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


def train_fold(device, n_steps=15):
    model = TokenTagger().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(n_steps):
        x = torch.randn(32, 128, 64, device=device)
        y = torch.zeros(32, 128, dtype=torch.long, device=device)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model


def cross_validate(k=6):
    device = torch.device("cuda")
    evaluator = Evaluator(8, device)
    all_results = []
    for fold in range(k):
        model = train_fold(device)
        all_results.append(evaluator.eval(model))  # <- here
        print(f"fold {fold}: f1={all_results[-1]['f1']:.3f}")
    return sum(r["f1"] for r in all_results) / k


print("mean f1", cross_validate())
