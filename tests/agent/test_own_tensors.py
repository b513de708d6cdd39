"""The agent's own tensors in scans for leaks."""

from __future__ import annotations

import pytest
import torch

from vramscope.leaks.scan.scanner import Scanner
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.metrics.async_copies import Copies


@pytest.mark.gpu
def test_the_agents_own_tensors_have_no_holder():
    """They would be traced through all objects of the process, in 0.1 s."""
    copies = Copies()
    slots = [copies.begin(torch.ones((), device="cuda")) for _ in range(3)]
    scanner = Scanner(TensorKinds())
    found = scanner.scan(10, lambda optimizer: False, None)
    assert None not in slots
    assert not [group for group in found.groups if "copies" in group.holder.name]
    assert not scanner._traced
