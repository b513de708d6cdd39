"""Training plans: combinations of techniques, under the names of the protocol."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

MICRO_STEPS: Final = (1, 2, 4, 8)
MAX_MICRO_STEPS: Final = 1 << 16


class TrainingPlan(NamedTuple):
    """Techniques in addition to those of the recorded step. The defaults are none."""

    gradient_accumulation: int = 1
    """Number of micro-batches into which each recorded batch is divided."""
    gradient_checkpointing: bool = False
    optimizer_8bit: bool = False
    no_foreach: bool = False
    """The optimizer steps one parameter at a time. 8-bit optimizers always do."""

    def used(self) -> list[str]:
        """Names of the techniques in use."""
        return [name for name, value in self._asdict().items() if value != self._field_defaults[name]]

    def simpler(self) -> Iterator[TrainingPlan]:
        """Yield the plans with one technique less, or half the micro-batches."""
        for name in self.used():
            less: Any = self._field_defaults[name]
            yield self._replace(**{name: less})
        if self.gradient_accumulation > 2:
            yield self._replace(gradient_accumulation=self.gradient_accumulation // 2)

    def __str__(self) -> str:
        """Text that ``parse_plan`` reads; ``none`` without techniques."""
        parts = f"gradient_accumulation:{self.gradient_accumulation}"
        return "+".join(parts if name == "gradient_accumulation" else name for name in self.used()) or "none"


def all_plans() -> Iterator[TrainingPlan]:
    """Yield all combinations that do not equal a simpler one."""
    for parts, checkpointing, eight_bit, loop in product(MICRO_STEPS, (False, True), (False, True), (False, True)):
        if not (eight_bit and loop):
            yield TrainingPlan(parts, checkpointing, eight_bit, loop)


def parse_plan(text: str) -> TrainingPlan:
    """Parse ``gradient_accumulation:4+gradient_checkpointing``. Raises ValueError with the reason."""
    values: dict[str, Any] = {}
    for word in re.split(r"[+\s]+", text.strip()):  # a plus in a URL is decoded as a space
        name, colon, number = word.partition(":")
        if name not in TrainingPlan._fields:
            raise ValueError(f"unknown technique {word!r}; known: {', '.join(TrainingPlan._fields)}")
        if name in values:
            raise ValueError(f"{name} is repeated")
        if name != "gradient_accumulation":
            if colon:
                raise ValueError(f"{name} takes no number")
            values[name] = True
        elif not number.isdecimal() or not 2 <= int(number) <= MAX_MICRO_STEPS:
            raise ValueError(
                "gradient_accumulation needs a number of micro-batches of at least 2, as in gradient_accumulation:4"
            )
        else:
            values[name] = int(number)
    if "optimizer_8bit" in values and "no_foreach" in values:
        raise ValueError("optimizer_8bit always steps one parameter at a time: remove no_foreach")
    return TrainingPlan(**values)
