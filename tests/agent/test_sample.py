"""Some tensors stand for the others of their sizes."""

from __future__ import annotations

import pytest
import torch

from vramscope.leaks.scan.tensor_sampling import Weight, Weights, sample


def drawn(sizes: list[int], most: int) -> tuple[list[int], float, float]:
    """Sizes of those that are taken; how many tensors and how many elements they stand for."""
    tensors = [torch.empty(size, device="meta") for size in sizes]
    weights: Weights = {id(one): Weight() for one in tensors}
    chosen, weights = sample(tensors, weights, most)
    assert set(weights) == {id(one) for one in chosen}
    return (
        [one.numel() for one in chosen],
        sum(weights[id(one)].tensors for one in chosen),
        sum(weights[id(one)].elements * one.numel() for one in chosen),
    )


@pytest.mark.parametrize(
    ("sizes", "most", "taken"),
    [
        ([8, 8], 4, [8, 8]),
        ([4] * 50 + [1024] * 9, 4, [1024, 1024, 4, 4]),  # not the largest alone
        ([1024] + [4] * 50, 4, [1024, 4, 4, 4]),
        (list(range(1, 11)), 3, [10, 9, 8]),  # more sizes than places
        ([], 3, []),
    ],
)
def test_each_size_has_its_turn_and_the_whole_is_counted(sizes: list[int], most: int, taken: list[int]) -> None:
    chosen, tensors, elements = drawn(sizes, most)
    assert chosen == taken
    assert (tensors, elements) == pytest.approx((len(sizes), sum(sizes)))


def test_a_sample_of_a_sample_stands_for_the_first_ones() -> None:
    tensors = [torch.empty(size, device="meta") for size in [16] * 40 + [2] * 5]
    first, weights = sample(tensors, {id(one): Weight() for one in tensors}, 10)
    second, weights = sample(first, weights, 3)
    assert sum(weights[id(one)].tensors for one in second) == pytest.approx(45)
    assert sum(weights[id(one)].elements * one.numel() for one in second) == pytest.approx(40 * 16 + 5 * 2)
