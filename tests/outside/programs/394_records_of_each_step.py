"""A trainer keeps one record a step, a dataclass with the logits and the loss, for a report at the end of the run. The logits have 40 MiB. Pattern: dataclass records in a list."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["leak"], "holder": ["records", "StepRecord", "logits"]}

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(slots=True)
class StepRecord:
    step: int
    loss: torch.Tensor
    logits: torch.Tensor


@dataclass
class Trainer:
    net: nn.Module
    records: list[StepRecord] = field(default_factory=list)

    def fit(self, steps):
        opt = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        target = torch.zeros(2048, dtype=torch.long, device="cuda")
        for step in range(steps):
            logits = self.net(torch.randn(2048, 256, device="cuda"))
            loss = nn.functional.cross_entropy(logits, target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            self.records.append(StepRecord(step, loss, logits.detach()))


Trainer(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 5120)).cuda()).fit(300)
