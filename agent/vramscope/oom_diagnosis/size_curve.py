"""What a step with a larger input makes at most, from what steps with smaller ones made.

Most of a model goes with its input, attention that keeps its scores with the square (a value for each pair of tokens), and a few
things with the cube (for each triple). Two sizes and what they took lie on one curve ``a * size + b * size**2``; beyond them no
sum of parts that go with less than the square is above it. Where the sizes themselves say that it is steeper, it is drawn with the
cube in the square's place. What goes with the cube and is too little to be seen in them is not known of.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, isclose, log, prod
from typing import Final

Shape = tuple[int, ...]

SAME_RATIO: Final = 0.02
"""width and height of a picture that are scaled together, in whole numbers"""
APART: Final = 1.2
"""times as large: nearer sizes say nothing of the curve"""
LEAST_SHARE: Final = 0.02
"""of what the larger took: what is left of less, when all that does not go with the input is taken off, is noise"""
BELOW: Final = 0.03
"""the curve, by which what a size between took shows that it is steeper"""


def curve_bytes(now: Shape, sizes: Iterable[tuple[Shape, float]]) -> float | None:
    """At most, for an input of this shape; None where no two of the sizes are like it but in what it is longer in.

    sizes   shapes of earlier inputs, and what of their steps goes with them
    """
    known = [(shape, took) for shape, took in sizes if took > 0 and len(shape) == len(now)]
    as_large = [took for shape, took in known if all(a >= b for a, b in zip(shape, now, strict=True))]
    if as_large:
        return min(as_large)
    below = [(prod(shape), took, way) for shape, took in known if (way := _grown(shape, now)) is not None]
    for size, took, way in sorted(below, key=lambda one: -one[0]):
        smaller = [(n, less) for n, less, of in below if of == way and n * APART <= size and less >= LEAST_SHARE * took]
        if smaller:
            first, last = min(smaller), (size, took)
            power = 2 if all(less >= (1 - BELOW) * _through(first, last, n, 2) for n, less in smaller) else 3
            return _through(first, last, prod(now), power)
    return None


def _grown(shape: Shape, now: Shape) -> frozenset[int] | None:
    """The dimensions in which the one is larger, all of them as many times; None where that is not so."""
    ratios = {place: b / a for place, (a, b) in enumerate(zip(shape, now, strict=True)) if a and a != b}
    first = next(iter(ratios.values()), 0.0)
    alike = all(isclose(ratio, first, rel_tol=SAME_RATIO) for ratio in ratios.values())
    return frozenset(ratios) if first > 1 and alike and 0 not in shape else None


def _through(smaller: tuple[int, float], larger: tuple[int, float], size: int, power: int) -> float:
    """The curve through two points, at a size; as steep as they are where that is more than the power."""
    (n1, took1), (n2, took2) = smaller, larger
    rest = power - 1
    curved: float = max(0.0, (took2 / n2 - took1 / n1) / (n2**rest - n1**rest))
    straight: float = took2 / n2 - curved * n2**rest
    if straight >= 0:
        return straight * size + curved * float(size) ** power
    if power < 3:
        return _through(smaller, larger, size, 3)
    return took2 * exp(log(size / n2) * log(took2 / took1) / log(n2 / n1))
