"""A way to train: which techniques go together, under the names that the wire has for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

MICRO_STEPS: Final = (1, 2, 4, 8)
MOST_MICRO_STEPS: Final = 1 << 16


class TrainingPlan(NamedTuple):
    """Techniques beside what the recorded step has; as they stand here: none."""

    gradient_accumulation: int = 1
    """micro-batches into which each recorded batch is divided"""
    gradient_checkpointing: bool = False
    optimizer_8bit: bool = False
    no_foreach: bool = False
    """the optimizer steps one parameter at a time; 8-bit optimizers do so anyway"""

    def used(self) -> list[str]:
        """The names of its techniques."""
        return [name for name, value in self._asdict().items() if value != self._field_defaults[name]]

    def simpler(self) -> Iterator[TrainingPlan]:
        """The ways with one technique less, or half the micro-batches."""
        for name in self.used():
            less: Any = self._field_defaults[name]
            yield self._replace(**{name: less})
        if self.gradient_accumulation > 2:
            yield self._replace(gradient_accumulation=self.gradient_accumulation // 2)

    def __str__(self) -> str:
        """As ``parse_plan`` reads it; ``none`` where it has no technique."""
        parts = f"gradient_accumulation:{self.gradient_accumulation}"
        return "+".join(parts if name == "gradient_accumulation" else name for name in self.used()) or "none"


def all_plans() -> Iterator[TrainingPlan]:
    """Each combination that is not the same as a simpler one."""
    for parts, checkpointing, eight_bit, loop in product(MICRO_STEPS, (False, True), (False, True), (False, True)):
        if not (eight_bit and loop):
            yield TrainingPlan(parts, checkpointing, eight_bit, loop)


def parse_plan(words: str) -> TrainingPlan:
    """Of ``gradient_accumulation:4+gradient_checkpointing``. Raises ValueError, which says what is wrong."""
    given: dict[str, Any] = {}
    for word in re.split(r"[+\s]+", words.strip()):  # (a plus in an address is read as a blank)
        name, colon, number = word.partition(":")
        if name not in TrainingPlan._fields:
            raise ValueError(f"{word!r} is none of {', '.join(TrainingPlan._fields)}")
        if name in given:
            raise ValueError(f"{name} stands twice")
        if name != "gradient_accumulation":
            if colon:
                raise ValueError(f"{name} takes no number")
            given[name] = True
        elif not number.isdecimal() or not 2 <= int(number) <= MOST_MICRO_STEPS:
            raise ValueError(
                "gradient_accumulation needs a number of micro-batches from 2 on, as gradient_accumulation:4"
            )
        else:
            given[name] = int(number)
    if "optimizer_8bit" in given and "no_foreach" in given:
        raise ValueError("optimizer_8bit steps one parameter at a time anyway: leave no_foreach out")
    return TrainingPlan(**given)
