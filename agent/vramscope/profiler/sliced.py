"""Long loops in slices: between two of them the training's threads have the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

SLICE: Final = 256
"""rows between two pauses: some 1 ms of summing"""

Row = TypeVar("Row")


def sliced(rows: Iterable[Row], pause: Callable[[], None]) -> Iterator[Row]:
    """The same rows, with a pause behind every SLICE of them."""
    for number, row in enumerate(rows, 1):
        yield row
        if number % SLICE == 0:
            pause()
