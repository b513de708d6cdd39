"""What modules and optimizers own is counted where they keep it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vramscope.memory.counting import count
from vramscope.oom import holdings
from vramscope.wire import CPU


class AdaLomo(torch.optim.Optimizer):
    """Keeps its state as the package's does: in dicts of its own, by the names of parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 0.1})
        self.names = {id(one): name for name, one in model.named_parameters()}
        self.exp_avg_sq: dict[str, Any] = {}
        self.exp_avg_sq_row: dict[str, Any] = {}
        self.exp_avg_sq_col: dict[str, Any] = {}
        for name, one in model.named_parameters():
            if one.dim() == 1:
                self.exp_avg_sq[name] = torch.zeros(one.shape)
            else:
                self.exp_avg_sq_row[name] = torch.zeros(one.shape[0])
                self.exp_avg_sq_col[name] = torch.zeros(one.shape[1])


def test_what_adalomo_keeps_in_dicts_of_its_own_is_optimizer_state() -> None:
    model = nn.Linear(64, 32)
    optimizer = AdaLomo(model)
    assert count([optimizer], [model], CPU).optimizer == 0, "dicts of anybody's are no state"
    AdaLomo.__module__ = "lomo_optim.adalomo"
    kept = (32 + 64 + 32) * 4
    assert count([optimizer], [model], CPU).optimizer == kept
    found = holdings.count([optimizer], [model], CPU, loading=False)
    assert found.owned_bytes["optimizer"] == kept
