"""Blocks without an owner that are as large as a weight."""

from __future__ import annotations

from typing import Any

import torch

from vramscope.oom import weight_sized

MIB = 1 << 20


def segment(*blocks: tuple[int, str]) -> dict[str, Any]:
    return {"address": 0, "blocks": [{"size": size, "requested_size": size, "state": state} for size, state in blocks]}


def test_results_of_weights_are_told_by_size_and_owner() -> None:
    numbers = weight_sized.numbers_of(
        [torch.empty(1024, 1024, dtype=torch.int8, device="meta"), torch.empty(1024, device="meta")]
    )
    assert numbers == {MIB: 1}
    active, free = "active_allocated", "inactive"
    found = [segment((4 * MIB, active), (4 * MIB, free), (3 * MIB, active), (2 * MIB, active), (4096, active))]
    assert weight_sized.bytes_of(found, numbers, set()) == 6 * MIB
    assert weight_sized.bytes_of(found, numbers, {0}) == 2 * MIB, (
        "the first block is the weight itself, or its gradient"
    )


def test_activations_of_a_weights_size_count_as_few() -> None:
    """As many rows as columns are a coincidence: two of each weight may be computed from it."""
    many = [segment(*[(4 * MIB, "active_allocated")] * 9)]
    assert weight_sized.bytes_of(many, {MIB: 1}, set()) == 8 * MIB
