"""Values of a snapshot file that cannot be, or that this version does not know, and what becomes of them."""

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
    "stream": "more than 64 bits; told apart by its lowest 64",
    "pool_id": "no pair of numbers of 64 bits; unknown",
    "segment_pool_id": "no pair of numbers of 64 bits; taken for the default pool",
    "time_us": "more than there can be; unknown",
    "device_free": "more than there can be; unknown",
    "requested_size": "more than there can be; the size of its block stands for it",
    "addr or size": "more than there can be; the events are left out",
    "address or size": "more than there can be; what the segments hold is left out",
}  # fmt: skip
"""What becomes of a field whose value cannot be."""


class OddValues:
    """Remarks on odd values of one file, and how often each occurred."""

    def __init__(self) -> None:
        self._often: Counter[str] = Counter()

    def remark(self, text: str, often: int) -> None:
        """Count a remark in words."""
        self._often[text] += often

    def cannot_be(self, field: str, kind: int, often: int) -> None:
        """Count values of a field that cannot be."""
        self.remark(f"{field} of {NOUNS[kind]}: {_BEYOND[field]}", often)

    def replaced(self, column: Any, wrong: int, field: str, kind: int, instead: int) -> Any:
        """Return a column with ``instead`` in the place of the mark ``wrong``, and count its rows."""
        is_wrong = column == wrong
        if is_wrong.any():
            self.cannot_be(field, kind, int(is_wrong.sum()))
            column = np.where(is_wrong, instead, column)
        return column

    def lines(self) -> Iterator[str]:
        """The remarks, sorted."""
        for text, often in sorted(self._often.items()):
            yield f"{text} ({times(often)})"


def is_beyond(addresses: Any) -> Any:
    """Return which addresses cannot be, or would make sums wrong."""
    return (addresses == BEYOND) | (addresses > MAX_ADDRESS)
