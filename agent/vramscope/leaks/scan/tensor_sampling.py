"""Sample of many tensors, and how many others each of them stands for."""

from __future__ import annotations

from typing import Any, NamedTuple


class Weight(NamedTuple):
    """Weight of one sampled tensor."""

    tensors: float = 1.0
    elements: float = 1.0
    """Factor on its own number of elements."""


Weights = dict[int, Weight]
"""By the id of a tensor."""


def sample(tensors: list[Any], weights: Weights, most: int) -> tuple[list[Any], Weights]:
    """At most ``most`` tensors, of each size in turn, and their weights: each stands for the others of its size.

    Where there are more sizes than ``most``, the largest stand for the rest too. The weights add up to those of ``tensors``, in
    number and in elements.
    """
    sizes: dict[int, list[Any]] = {}
    for tensor in tensors:
        sizes.setdefault(tensor.numel(), []).append(tensor)
    taken = [sizes[size] for size in sorted(sizes, reverse=True)[:most]]
    numbers = [0] * len(taken)
    left = min(most, sum(map(len, taken)))
    while left:
        for at, alike in enumerate(taken):
            if left and numbers[at] < len(alike):
                numbers[at] += 1
                left -= 1
    chosen: list[Any] = []
    found: Weights = {}
    for alike, number in zip(taken, numbers, strict=True):
        weight = Weight(
            sum(weights[id(one)].tensors for one in alike) / number,
            sum(weights[id(one)].elements for one in alike) / number,
        )
        chosen += alike[:number]
        found |= {id(one): weight for one in alike[:number]}
    before, after = _sums(tensors, weights), _sums(chosen, found)
    more, larger = (whole / part if part else 1.0 for whole, part in zip(before, after, strict=True))
    return chosen, {key: Weight(one.tensors * more, one.elements * larger) for key, one in found.items()}


def _sums(tensors: list[Any], weights: Weights) -> tuple[float, float]:
    """Tensors and elements that these stand for."""
    return (
        sum(weights[id(one)].tensors for one in tensors),
        sum(weights[id(one)].elements * one.numel() for one in tensors),
    )
