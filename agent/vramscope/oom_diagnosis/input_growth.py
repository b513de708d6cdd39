"""Whether this step's input is larger than the last complete step's."""

from __future__ import annotations

from typing import Final

from vramscope.oom_diagnosis.facts import Facts

LARGER: Final = 1.1
"""An input counts as larger from this ratio on."""


def has_larger_input(facts: Facts) -> bool:
    """Whether the input is known to be larger than the last complete step's."""
    ratio = facts.input_ratio
    return ratio is not None and ratio >= LARGER and facts.phase in ("forward", "backward")


def is_longer_input(facts: Facts) -> bool:
    """Whether the input is larger with as many rows as before."""
    return has_larger_input(facts) and facts.input_shape[:1] == facts.input_shape_before[:1]
