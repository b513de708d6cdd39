"""Which of the live modules count as models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vramscope.steps.root_modules import outermost_modules


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_half_made_modules_are_left_out_and_traced_ones_are_not() -> None:
    """copy.deepcopy and pickle make an object first, and give it its attributes last."""
    traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    half_made = nn.Linear.__new__(nn.Linear)
    half_made.__dict__["owner"] = None
    whole = nn.Linear(3, 3)
    assert outermost_modules([traced, half_made, whole]) == [whole, traced]
