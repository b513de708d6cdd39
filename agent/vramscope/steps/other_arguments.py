"""Sizes of a call's other arguments beside its first one: a graph's edges, the length of captions, a number of layers or steps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

AS_MUCH: Final = 1.1
"""Ratio up to which other arguments count as equally large beside the first one."""
MOST_OPENED: Final = 32
"""Lists, tuples and dicts that are read, those within others included."""
MOST_INSIDE: Final = 64
"""Elements of one of them that are read."""


class OtherArguments(NamedTuple):
    """Sizes of all arguments but the first."""

    numbers: float = 0.0
    """Numbers in the other tensors, for each number of the first one."""
    largest_int: int = 0
    """Largest whole number that is no dimension of a tensor: layers to run, or places of an expert. True counts as 1."""

    def at_least(self, other: OtherArguments) -> OtherArguments:
        """The larger of each."""
        return OtherArguments(max(self.numbers, other.numbers), max(self.largest_int, other.largest_int))

    def is_covered_by(self, before: OtherArguments) -> bool:
        """Whether they are no larger beside the first argument than those of an earlier call: the rows of a batch of captions,
        say, and not their length, have become more."""
        return self.numbers <= AS_MUCH * before.numbers and self.largest_int <= AS_MUCH * before.largest_int


NONE: Final = OtherArguments()


def sizes_beside(
    first: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: type[Any] | None
) -> OtherArguments:
    """Sizes of the arguments beside ``first``, one of them. Runs no code of the user's classes.

    tensor   the class of tensors; subclasses do not count
    """
    waiting: list[Any] = [*args, *kwargs.values()]
    tensors, numbers, opened = [], list[int](), 0
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind is tensor:
            tensors.append(one)
        elif kind is int or kind is bool:
            numbers.append(int(one))
        elif (kind is dict or kind is tuple or kind is list) and opened < MOST_OPENED:
            opened += 1
            waiting += islice(one.values(), MOST_INSIDE) if kind is dict else one[:MOST_INSIDE]
    beside = sum([one.numel() for one in tensors]) / max(1, first.numel()) - 1
    if max(numbers, default=0) <= 1:  # flags alone
        return OtherArguments(beside, max(0, *numbers) if numbers else 0)
    dimensions = {size for one in tensors if not one.is_nested for size in one.shape}
    return OtherArguments(beside, max([0, *(one for one in numbers if one not in dimensions)]))
