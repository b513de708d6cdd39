"""Upper bound of the memory of a step with a larger input, from steps with smaller inputs.

Most of a model is proportional to its input. Attention that keeps its scores grows with the square (a value for each
pair of tokens), and a few operations with the cube (for each triple). Two sizes and their bytes define one curve ``a *
size + b * size**2``. Beyond them no sum of parts that grow with less than the square is above it. Where the sizes
themselves show a steeper curve, the cube replaces the square. A cubic part that is too small to show in them is not
covered.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, isclose, log, prod
from typing import Final

Shape = tuple[int, ...]

SAME_RATIO: Final = 0.02
"""Tolerance where width and height of a picture are scaled together, in whole numbers."""
APART: Final = 1.2
"""Two sizes must differ by this factor to define a curve."""
LEAST_SHARE: Final = 0.02
"""Share of the larger size's bytes that the smaller one must have. Less is noise, once constant parts are subtracted."""
BELOW: Final = 0.03
"""If a measured size in between is this far below the quadratic curve, the cubic one is used."""


def curve_bytes(now: Shape, sizes: Iterable[tuple[Shape, float]]) -> float | None:
    """Upper bound for an input of this shape; None unless two of the sizes differ from it in the same axes alone.

    sizes   shapes of earlier inputs, and the bytes of their steps that depend on them
    """
    known = [(shape, took) for shape, took in sizes if took > 0 and len(shape) == len(now)]
    as_large = [took for shape, took in known if all(a >= b for a, b in zip(shape, now, strict=True))]
    if as_large:
        return min(as_large)
    below = [(prod(shape), took, axes) for shape, took in known if (axes := _grown(shape, now)) is not None]
    for size, took, axes in sorted(below, key=lambda one: -one[0]):
        smaller = [
            (n, less) for n, less, of in below if of == axes and n * APART <= size and less >= LEAST_SHARE * took
        ]
        if smaller:
            first, last = min(smaller), (size, took)
            power = 2 if all(less >= (1 - BELOW) * _through(first, last, n, 2) for n, less in smaller) else 3
            return _through(first, last, prod(now), power)
    return None


def _grown(shape: Shape, now: Shape) -> frozenset[int] | None:
    """Axes in which the input is larger, all by the same factor; None where that does not hold."""
    ratios = {axis: b / a for axis, (a, b) in enumerate(zip(shape, now, strict=True)) if a and a != b}
    first = next(iter(ratios.values()), 0.0)
    alike = all(isclose(ratio, first, rel_tol=SAME_RATIO) for ratio in ratios.values())
    return frozenset(ratios) if first > 1 and alike and 0 not in shape else None


def _through(smaller: tuple[int, float], larger: tuple[int, float], size: int, power: int) -> float:
    """Value at a size of the curve through two points; a power law where the points are steeper than the power."""
    (n1, took1), (n2, took2) = smaller, larger
    rest = power - 1
    curved: float = max(0.0, (took2 / n2 - took1 / n1) / (n2**rest - n1**rest))
    straight: float = took2 / n2 - curved * n2**rest
    if straight >= 0:
        return straight * size + curved * float(size) ** power
    if power < 3:
        return _through(smaller, larger, size, 3)
    return took2 * exp(log(size / n2) * log(took2 / took1) / log(n2 / n1))
