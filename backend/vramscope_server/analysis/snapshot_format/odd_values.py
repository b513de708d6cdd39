"""Notes on values of a snapshot file that are out of range or unknown, and on how they are treated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from vramscope_server.analysis.number_format import times
from vramscope_server.analysis.snapshot_format.items import NOUNS
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import BEYOND
from vramscope_server.analysis.trace.trace import MAX_ADDRESS

MOST_BYTES: Final = 1 << 50
"""Maximum size of an event; larger ones would overflow sums."""
_BEYOND: Final = {
    "stream": "more than 64 bits; only the lowest 64 are used",
    "pool_id": "not a pair of 64-bit numbers; treated as unknown",
    "segment_pool_id": "not a pair of 64-bit numbers; treated as the default pool",
    "time_us": "out of range; treated as unknown",
    "device_free": "out of range; treated as unknown",
    "requested_size": "out of range; the size of the block is used instead",
    "addr or size": "out of range; these events are left out",
    "address or size": "out of range; these segments and their blocks are left out",
}  # fmt: skip
"""Treatment of a value that is out of range, by field."""


class OddValues:
    """Remarks on odd values of one file, with the number of times that each occurred."""

    def __init__(self) -> None:
        self._often: Counter[str] = Counter()

    def remark(self, text: str, often: int) -> None:
        """Add a remark, and the number of values that it applies to."""
        self._often[text] += often

    def out_of_range(self, field: str, kind: int, often: int) -> None:
        """Add a remark on values of a field that are out of range."""
        self.remark(f"{field} of {NOUNS[kind]}: {_BEYOND[field]}", often)

    def replaced(self, column: Any, wrong: int, field: str, kind: int, instead: int) -> Any:
        """Replace the mark ``wrong`` in a column by ``instead``, and add a remark with the number of replaced values."""
        is_wrong = column == wrong
        if is_wrong.any():
            self.out_of_range(field, kind, int(is_wrong.sum()))
            column = np.where(is_wrong, instead, column)
        return column

    def lines(self) -> Iterator[str]:
        """Yield the remarks, sorted."""
        for text, often in sorted(self._often.items()):
            yield f"{text} ({times(often)})"


def is_beyond(addresses: Any) -> Any:
    """Return which addresses are out of range, or too large for sums."""
    return (addresses == BEYOND) | (addresses > MAX_ADDRESS)
