"""Which tensors without a known holder make a scan incomplete."""

from __future__ import annotations

import weakref

import pytest
import torch

from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan.scanner import Scanner
from vramscope.leaks.scan.storages import TensorKinds

FLOATS = POLICY.material_bytes // 4
"""As many are reported where little else is alive."""


@pytest.mark.parametrize(
    ("elements", "has_graph", "count"), [(FLOATS // 4, False, 0), (FLOATS, False, 2), (16, True, 2)]
)
def test_small_tensors_without_a_graph_leave_a_scan_complete(elements: int, has_graph: bool, count: int) -> None:
    """A number that has a graph may retain much."""
    tensors = [torch.zeros(elements, requires_grad=has_graph) for _ in range(2)]
    if has_graph:
        tensors = [tensor * 2 for tensor in tensors]
    scanner = Scanner(TensorKinds())
    scanner.live_bytes = 0
    assert scanner._considerable([weakref.ref(tensor) for tensor in tensors]) == count
