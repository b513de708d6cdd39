"""Sizes of a call's other arguments beside its first one: a graph's edges, the length of captions, a number of layers or steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

AS_MUCH: Final = 1.1
"""Ratio up to which other arguments count as equally large beside the first one."""
DEPTH: Final = 3
"""Levels of lists, tuples and dicts that are opened."""
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
    numbers, counts, dimensions = 0, list[int](), set[int]()
    kinds = int, bool, tensor
    for one in (*_inside(args, kinds, DEPTH), *_inside(kwargs, kinds, DEPTH)):
        if type(one) is tensor:
            numbers += one.numel()
            dimensions.update(one.shape)
        else:
            counts.append(int(one))
    count = max((one for one in counts if one not in dimensions), default=0)
    return OtherArguments(numbers / max(1, first.numel()) - 1, max(0, count))


def _inside(value: Any, kinds: tuple[Any, ...], depth: int) -> Iterator[Any]:
    """Yield values of these kinds. Only Python's own containers are opened."""
    kind = type(value)
    if kind is dict:
        value = list(value.values())
    elif kind is not tuple and kind is not list:
        if kind in kinds:
            yield value
        return
    if depth:
        for one in value[:MOST_INSIDE]:
            yield from _inside(one, kinds, depth - 1)
