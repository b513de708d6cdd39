"""Runs long loops in slices, with pauses in which the threads of the training run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

SLICE: Final = 256
"""Rows between two pauses: about 1 ms of summing."""

Row = TypeVar("Row")


def sliced(rows: Iterable[Row], pause: Callable[[], None]) -> Iterator[Row]:
    """Yield the same rows, with a pause after every SLICE of them."""
    for number, row in enumerate(rows, 1):
        yield row
        if number % SLICE == 0:
            pause()
