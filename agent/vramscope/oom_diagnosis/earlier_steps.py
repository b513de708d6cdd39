"""What earlier steps show of this step's need: upper bounds, and what would be proportional to its input."""

from __future__ import annotations

from math import prod
from typing import Final

from vramscope.oom_diagnosis.estimate import Basis
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.input_growth import has_larger_input, is_longer_input
from vramscope.oom_diagnosis.size_curve import curve_bytes

LARGER_INPUT_ERROR: Final = 0.25
"""Error where a step with a smaller input is scaled: a part of it depends on the rows alone, or on neither."""
BYTES: Final = (1, 2, 4, 8)
"""Bytes of a number, by dtype."""
BYTES_A_NUMBER: Final = BYTES[-1]
"""Most bytes a number of an input whose dtype is not known."""
ROUNDED_TO: Final = 2 << 20
"""The allocator rounds a request that it reserves a segment for up to a multiple of it."""
LEAST_SEGMENT: Final = 20 << 20
"""Size of a segment for a tensor of 1 MiB."""


def took_bytes(facts: Facts, fixed_bytes: int) -> int:
    """Bytes that the last complete step allocated. Of the constant bytes, only those at its end were a part of its peak."""
    constant = min(facts.constant_bytes, max(0, (facts.end_before_bytes or 0) - fixed_bytes))
    return max(0, (facts.peak_before_bytes or 0) - fixed_bytes - constant)


def scaled_by_length(facts: Facts, before_bytes: int) -> float | None:
    """Bytes of the last complete step, scaled to as many rows of a greater length; None where that does not apply."""
    if _by_sizes(facts) is not None:
        return None  # that finding says more
    if not is_longer_input(facts) or not facts.scales_with_length or not before_bytes:
        return None
    return before_bytes * (facts.input_ratio or 0.0)


def at_most(facts: Facts) -> tuple[float, Basis | None]:
    """Upper bound of what a step allocates, by what earlier steps allocated for their inputs; (0, None) where they say nothing."""
    curve = _by_sizes(facts)
    if curve is not None:
        return curve, Basis.OTHER_SIZES
    ratio = facts.input_ratio
    grows = bool(facts.growth_bytes or facts.leaked_bytes) and not facts.evaluates
    if ratio is None or not facts.peak_before_bytes or grows:
        return 0.0, None
    took = took_bytes(facts, facts.fixed_bytes or 0)
    if ratio <= 1 or not has_larger_input(facts):
        return took * max(1.0, ratio), Basis.EARLIER_STEP
    if facts.has_only_more_rows and not asks_for(
        facts, (facts.batch_size or 0) ** 2
    ):  # pairs of rows are not in proportion
        return took * ratio * (1 + LARGER_INPUT_ERROR), Basis.MORE_ROWS
    return took * ratio**2, Basis.SQUARE_OF_INPUT


def converts_input(facts: Facts) -> bool:
    """Whether the request has a number for each of the input's: ``frames.float() / 255``. As many rows as columns prove nothing."""
    numbers = prod(facts.input_shape)
    return numbers % (facts.batch_size or 1) ** 2 != 0 and asks_for(facts, numbers)


def asks_for(facts: Facts, numbers: int) -> bool:
    """Whether the request is a tensor with this number of elements. Small ones prove nothing, as they are rounded up."""
    sizes = (numbers * wide for wide in BYTES if numbers * wide >= LEAST_SEGMENT)
    return any(0 <= (facts.asked_bytes or 0) - size < ROUNDED_TO for size in sizes)


def in_proportion(facts: Facts) -> tuple[float, float]:
    """Least and most bytes of a step that grew in proportion to its input, beside gradients: all or none were there at the peak.

    0 where the last complete step's are not known.
    """
    risen = [took for shape, took in facts.input_sizes if shape == facts.input_shape_before]
    ratio, gradients = facts.input_ratio, facts.full_gradients_bytes
    if not risen or ratio is None or not has_larger_input(facts):
        return 0.0, 0.0
    return max(0, risen[0] - gradients) * ratio, risen[0] * ratio - gradients


def _by_sizes(facts: Facts) -> float | None:
    """The same from steps whose inputs had other sizes; None where they say nothing."""
    gradients = facts.full_gradients_bytes
    return curve_bytes(facts.input_shape, [(shape, risen - gradients) for shape, risen in facts.input_sizes])
