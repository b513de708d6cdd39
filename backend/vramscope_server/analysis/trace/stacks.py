"""Stores call stacks as two arrays, so that a million stacks take no more memory than their frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """Stack ``i`` is ``flat[offsets[i] : offsets[i + 1]]``, innermost frame first."""

    flat: npt.NDArray[np.int32]
    """Positions of frames."""
    offsets: IntArray
    """Number of stacks + 1 offsets, from 0 to the length of ``flat``."""

    @classmethod
    def of(cls, stacks: Iterable[Iterable[int]]) -> Stacks:
        """Build from lists of positions. Raises OverflowError if one does not fit into 32 bits."""
        lists = [list(stack) for stack in stacks]
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(stack) for stack in lists], out=offsets[1:])
        return cls(np.array(list(chain.from_iterable(lists)), np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, stack: int) -> list[int]:
        if not 0 <= stack < len(self):
            raise IndexError(f"stack {stack} does not exist; there are {len(self)}")
        positions: list[int] = self.flat[self.offsets[stack] : self.offsets[stack + 1]].tolist()
        return positions

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over stacks as lists. A million stacks take seconds."""
        return (self[stack] for stack in range(len(self)))
