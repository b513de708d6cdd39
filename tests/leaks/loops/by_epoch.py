"""What is kept of each epoch, and belongs to a class although each epoch has an object of its own."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

import torch
from truth import leaks

from .epochs import INPUTS, batches, step_on, training
from .models import FLOAT_BYTES


class Scores:
    by_epoch: ClassVar[defaultdict[int, list[torch.Tensor]]] = defaultdict(list)

    def update(self, epoch: int, scores: torch.Tensor) -> None:
        self.by_epoch[epoch].append(scores)  # <- leak of scores_by_epoch


@leaks("tensor-growth", holder="by_epoch", bytes_each=(1024 * 10 * FLOAT_BYTES,) * 3, every=6)
def scores_by_epoch(device: str) -> None:
    """A metric is made for each epoch, but its dictionary belongs to the class."""
    model, optimizer = training(device)
    for epoch in range(17):
        for x, y in batches(device, 6):
            step_on(model, optimizer, x, y)
        # fix here: Scores.by_epoch.clear()
        metric = Scores()
        with torch.no_grad():
            for _ in range(3):
                metric.update(epoch, model(torch.zeros(1024, INPUTS, device=device)))
