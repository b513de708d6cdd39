"""Contents of the lists and dicts of a snapshot, as rows of its tables."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import (  # fmt: skip
    BLOCK,
    DICT,
    EVENT,
    FRAMES_LIST,
    KIND_BITS,
    LIST,
    NEW,
    OTHER,
    ROWS_LIST,
    SEGMENT,
    STACK_LIST,
    TAG_BITS,
    WORD,
    Tables,
    words_of,
)
from vramscope_server.analysis.snapshot_format.stream import BadSnapshot, value_of

_KIND_MASK: Final = (1 << KIND_BITS) - 1
_TAG_MASK: Final = (1 << TAG_BITS) - 1
_MAX_LINES: Final = 10_000
"""Maximum number of lines of a stack that is stored as text."""
NOUNS: Final = {EVENT: "an event", BLOCK: "a block", SEGMENT: "a segment"}


def is_list(item: int) -> bool:
    """Return True for a list of any kind."""
    return item & _TAG_MASK == LIST


def is_dict(item: int) -> bool:
    """Return True for a dict of any kind."""
    return item & _TAG_MASK == DICT


class Items:
    """Reads items of the tables. Raises BadSnapshot, with the name of the item, if one has the wrong type."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def inside(self, item: int, name: str, most: int = 1024) -> IntArray:
        """Return the kind and row of each element of a list."""
        if not is_list(item):
            raise BadSnapshot(f"{name}: no list")
        row = item >> TAG_BITS
        holds = int(self._tables.lists[row, 0])
        if holds & 3 in (FRAMES_LIST, STACK_LIST):
            raise BadSnapshot(f"{name}: unexpected frames")
        if holds >> 2 > most:
            raise BadSnapshot(f"{name}: {holds >> 2:,} elements; at most {most:,} are allowed")
        codes: IntArray = flattened(self._tables.lists, self._tables.runs, np.array([row]))[0]
        return codes

    def of_kind(self, codes: Any, kind: int, what: str) -> Any:
        """Return the rows of items that must all be of one kind."""
        wrong = np.flatnonzero(codes & _KIND_MASK != kind)
        if not len(wrong):
            return codes >> KIND_BITS
        found_kind, noun = int(codes[wrong[0]]) & _KIND_MASK, NOUNS[kind]
        if found_kind in (NEW, OTHER):
            key = {EVENT: "action", BLOCK: "state", SEGMENT: "total_size"}[kind]
            raise BadSnapshot(f"{key} of {noun}: missing")
        raise BadSnapshot(
            f"{what}: {NOUNS.get(found_kind, 'no dict')}{f', expected {noun}' if found_kind in NOUNS else ''}"
        )

    def kept(self, codes: Any, kind: int) -> Any:
        """Return the rows of the items of one kind, without the others."""
        return codes[codes & _KIND_MASK == kind] >> KIND_BITS

    def words(self, row: int) -> list[str]:
        """Return the strings in the list at a row."""
        codes = (
            self.inside((row << TAG_BITS) | LIST, "forward_frames of an event", _MAX_LINES)
            if self._has_rows(row)
            else np.empty(0, np.int64)
        )
        return words_of(self._tables, self.kept(codes, WORD))

    def _has_rows(self, row: int) -> bool:
        return int(self._tables.lists[row, 0]) & 3 == ROWS_LIST

    def pairs(self, item: int) -> dict[str, int]:
        """Return the items of a dict of kind OTHER by their string keys."""
        held = int(self._tables.dicts[item >> TAG_BITS])
        if held & _KIND_MASK != OTHER:
            return {}
        pair = held >> KIND_BITS
        found: dict[str, int] = {}
        while pair >= 0 and len(found) < 10_000:
            key, value, pair = self._tables.pairs[pair].tolist()
            found.setdefault(str(value_of(self._tables, key)), value)  # the newest comes first
        return dict(reversed(found.items()))

    def plain_dict(self, item: int, name: str) -> dict[str, Any]:
        """Return the plain values of a dict and of the dicts in it, by their string keys."""
        if not is_dict(item):
            raise BadSnapshot(f"{name}: no dict")
        return {
            key: self._plain_pairs(value) if is_dict(value) else value_of(self._tables, value)
            for key, value in self.pairs(item).items()
        }

    def _plain_pairs(self, item: int) -> dict[str, Any]:
        return {key: value_of(self._tables, value) for key, value in self.pairs(item).items()}

    def event_lists(self, item: int, most_events: int) -> list[range | IntArray]:
        """Return the rows of each device's events. Consecutive rows, as in all known files, are not copied."""
        found: list[range | IntArray] = []
        events = 0
        for code in self.inside(item, "device_traces").tolist():
            if code & _KIND_MASK != LIST:
                raise BadSnapshot("device_traces: no list")
            row = code >> KIND_BITS
            holds, first, last = self._tables.lists[row].tolist()
            events += holds >> 2
            if events > most_events:
                raise BadSnapshot(f"more than {most_events:,} events")
            if holds & 3 == ROWS_LIST and first == last:
                begin, count, _ = self._tables.runs[first].tolist()
                self.of_kind(np.array([begin]), EVENT, "an event")
                found.append(range(begin >> KIND_BITS, (begin >> KIND_BITS) + count))
            else:
                codes = self.inside((row << TAG_BITS) | LIST, "device_traces", most_events)
                found.append(self.of_kind(codes, EVENT, "an event"))
        return found


@entry
def flattened(lists: Any, runs: Any, which: Any) -> Any:
    """Return the kind and row of the elements of some lists, and the number in each list. Frames are left out."""
    lengths = np.zeros(len(which), np.int64)
    for at in range(len(which)):
        if lists[which[at], 0] & 3 == ROWS_LIST:
            lengths[at] = lists[which[at], 0] >> 2
    found = np.empty(lengths.sum(), np.int64)
    at = 0
    for one in range(len(which)):
        run = lists[which[one], 1] if lengths[one] else -1
        while run >= 0:
            for nth in range(runs[run, 1]):
                found[at] = runs[run, 0] + (nth << KIND_BITS)
                at += 1
            run = runs[run, 2]
    return found, lengths
