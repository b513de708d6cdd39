"""Values that a program reads from an emulated GPU, where nothing is computed.

The emulated driver calls back for each copy from the device to the host whose content no host code wrote. So no read is
missed, whichever function causes it. The C stack names PyTorch's operation, the Python stack the line.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

from vramscope.dry_run import host_masks, number_types, result_sizes, routing, sequence_lengths, sparse_entries
from vramscope.dry_run.read_place import COUNTED_FROM_0, NUMBER_BYTES, WIDTHS, ReadPlace, named_operations, place_of
from vramscope.guard import guarded
from vramscope.process import patching
from vramscope.process.frames import is_own
from vramscope.protocol.assumed_value import AssumedValue, bits_of
from vramscope.protocol.dry_run import Read, ReadKind

WRAPPERS: Final = frozenset(
    str(one.__file__)
    for one in (host_masks, number_types, patching, result_sizes, routing, sequence_lengths, sparse_entries)
)
"""Files whose functions stand between the program and PyTorch's. They read nothing of the device themselves."""
COALESCING: Final = frozenset({"coalesce", "_coalesce"})
"""Operations that read the number of different entries of a sparse tensor."""
SYNCHRONIZED: Final = "torch/nn/modules/_functions.py"
"""End of the file with SyncBatchNorm, which leaves out ranks without rows. Each rank of a training has rows."""
READS_UNTIL_CHANGE: Final = 1000
"""Number of truth values that one line may read in one step before the opposite value is returned once. A loop may wait for it."""
MOST_READS: Final = 50_000
"""Number of reads by one line in one step from which on a loop counts as stuck: it waits for a value that never comes."""
LARGEST_END: Final = 1 << 30
"""Number that is read as the end of a slice. No dimension is longer, and it is exact in each type of 4 bytes or more."""
WATCHER: Final = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p)
"""Function called for each read with its size, PyTorch's operations and the address of the result. It returns the first 8
bytes of the result; 0 leaves it unchanged."""


class ReadLog:
    """Counts the reads of this process by line."""

    def __init__(self, assumed: Sequence[AssumedValue] = (), selects_fewest: bool = False) -> None:
        self._selects_fewest = selects_fewest
        self.waits_at: str | None = None
        self._assumed = assumed
        self._read_assumed: set[AssumedValue] = set()
        self._counts: dict[ReadPlace, int] = {}
        self._in_step: dict[ReadPlace, int] = {}
        self._mutex = threading.Lock()
        self._driver: ctypes.CDLL | None = None
        self._callback = WATCHER(self._read)
        self._on_stuck: Callable[[], None]

    def watch(self, on_stuck: Callable[[], None]) -> bool:
        """Begin to count reads. Return False if this process has no emulated GPU.

        on_stuck   called when a loop waits for a value that never comes
        """
        driver = ctypes.CDLL("libcuda.so.1")
        if not hasattr(driver, "eg_watch_reads"):
            return False
        driver.eg_cudnn_plans.restype = ctypes.c_uint64
        driver.eg_recurrent_calls.restype = ctypes.c_uint64
        driver.eg_plain_recurrent_calls.restype = ctypes.c_uint64
        driver.eg_sparse_products.restype = ctypes.c_uint64
        driver.eg_refused.restype = ctypes.c_char_p
        self._on_stuck = on_stuck
        driver.eg_watch_reads(self._callback)
        self._driver = driver
        return True

    def stop(self) -> None:
        """Stop counting. The driver must not call Python any more when the interpreter ends."""
        if self._driver is not None:
            self._driver.eg_watch_reads(None)

    @property
    def cudnn_plans(self) -> int:
        """Number of operations that cuDNN executed."""
        return 0 if self._driver is None else int(self._driver.eg_cudnn_plans())

    @property
    def recurrent_calls(self) -> int:
        """Number of calls of recurrent networks through cuDNN."""
        return 0 if self._driver is None else int(self._driver.eg_recurrent_calls())

    @property
    def plain_recurrent_calls(self) -> int:
        """Number of those calls that were made by ``nn.RNN``."""
        return 0 if self._driver is None else int(self._driver.eg_plain_recurrent_calls())

    @property
    def sparse_products(self) -> int:
        """Number of products of a sparse and a dense operand by cuSPARSE."""
        return 0 if self._driver is None else int(self._driver.eg_sparse_products())

    @property
    def refused(self) -> str | None:
        """Name of a function that the program called and that cannot be emulated; None if there is none."""
        text = None if self._driver is None else self._driver.eg_refused()
        return None if text is None else str(text.decode())

    def reads(self) -> list[Read]:
        """Return all reads so far."""
        with self._mutex:
            counted = list(self._counts.items())
        return [
            Read(
                kind=place.kind,
                operation=place.operation,
                file=place.file,
                line=place.line,
                function=place.function,
                via=place.via,
                count=count,
                assumed=place.assumed,
                expression=place.expression,
                experts=place.experts,
            )
            for place, count in counted
        ]

    def _read(self, size_bytes: int, operations: bytes, result: int) -> int:
        with guarded("a read of the emulated device"):
            frame = sys._getframe().f_back  # None in a thread of the backward pass
            while frame is not None and frame.f_code.co_filename in WRAPPERS:
                frame = frame.f_back
            if frame is not None and is_own(frame.f_code.co_filename):
                return 0
            names = named_operations(operations.decode())
            place = place_of(size_bytes, names, frame)
            given = self._read_of_experts(place, size_bytes, result)
            if given is None:
                given = self._given(place, size_bytes)
            if given is not None:
                return given
            if (most := _most(place, size_bytes, names)) is not None:
                return self._bound(place, most)
            if place.kind == "largest":
                most = number_types.most()
                end = self._bound(place, LARGEST_END if most is None else most)
                return bits_of(end, size_bytes, number_types.reads_float() is True) or 0
            if place.kind == "used_number" and (most := number_types.most()) is not None:
                return self._all_true(place, most, size_bytes)
            is_size = place.kind == "shape"
            if is_size and place.operation == "bincount" and result_sizes.has_minimum():
                place = replace(place, kind="used_number", assumed=result_sizes.BELOW_MINIMUM)
            self._count(place)
            if is_size:
                return int(size_bytes == 1)  # PyTorch checks its own arguments
            changes = self._in_step[place] % READS_UNTIL_CHANGE == 0
            return int((place.assumed == "True") != changes) if place.kind in ("branch", "check") else 0
        return 0

    @property
    def unread(self) -> list[str]:
        """Lines for which the user set a value (``--assume``), but which read nothing."""
        return [str(one) for one in self._assumed if one not in self._read_assumed]

    def _given(self, place: ReadPlace, size_bytes: int) -> int | None:
        """Return the bytes of the value that the user set for this line, and count the read as an assumption.

        Of a result whose size depends on data it is the size. A truth value changes as others do: a loop may wait for it.
        """
        is_size = place.kind == "shape"
        for one in self._assumed:
            if not one.is_balanced and _is_for(one, place):
                if is_size and size_bytes == 1:
                    return 1  # PyTorch checks its own arguments
                bits = one.bits(size_bytes, number_types.reads_float() is True and not is_size)
                if is_size and place.operation in COUNTED_FROM_0 and bits:
                    bits -= 1
                if bits is not None:
                    self._read_assumed.add(one)
                    kind: ReadKind = "branch" if size_bytes == 1 else "used_number"
                    place = replace(place, kind=kind, assumed=f"{one.value} (--assume)")
                    self._count(place)
                    if kind == "branch" and self._in_step[place] % READS_UNTIL_CHANGE == 0:
                        return int(not bits)
                return bits
        return None

    def _balanced(self, place: ReadPlace) -> AssumedValue | None:
        """Return the assumption that this line distributes rows equally, if there is one."""
        return next((one for one in self._assumed if one.is_balanced and _is_for(one, place)), None)

    def _count_balanced(self, place: ReadPlace, one: AssumedValue, found: routing.Routing) -> None:
        self._read_assumed.add(one)
        text = f"{found.shares[0]:,} of {found.choices:,} rows to each of {found.experts} experts"
        self._count(replace(place, kind="balanced", assumed=text))

    def _read_of_experts(self, place: ReadPlace, size_bytes: int, result: int) -> int | None:
        """Answer reads of the rows per expert, if balanced experts are assumed.

        ``bincount()`` gets the largest number of an expert. A read of the rows of all experts gets equal numbers, which are
        written to ``result``. Returns the first bytes of the result, or 0 if it was written; None for other reads.
        """
        one, found = self._balanced(place), routing.last()
        if one is None or found is None:
            return None
        width = size_bytes // found.experts
        if place.kind == "shape" and place.operation == "bincount" and size_bytes == NUMBER_BYTES:
            self._count_balanced(place, one, found)
            return found.experts - 1
        if place.kind in ("copy", "used_copy") and width in WIDTHS and size_bytes == width * found.experts:
            ctypes.memmove(result, b"".join(share.to_bytes(width, "little") for share in found.shares), size_bytes)
            self._count_balanced(place, one, found)
            return 0
        return None

    def step_ended(self) -> None:
        """Reset the counts of the step."""
        with self._mutex:
            self._in_step.clear()

    def selected(self, frame: FrameType | None, elements: int) -> int:
        """Return the number of elements that a mask selects, and count the read.

        It is all elements, as many as the user set, or those of one expert if balanced experts are assumed.
        """
        with guarded("a result of the largest size"):
            if frame is not None and frame.f_code.co_filename.endswith(SYNCHRONIZED):
                return elements
            if frame is not None and is_own(frame.f_code.co_filename):
                return elements
            place = place_of(0, ["nonzero"], frame)
            if (given := self._given_rows(place)) is not None:
                return min(given, elements)
            one, found = self._balanced(place), routing.last()
            if one is not None and found is not None and (rows := found.selected(elements)) < elements:
                self._count_balanced(place, one, found)
                return rows
            if place.kind != "print":
                is_expert = found is not None and found.looks_like_experts(elements)
                return self._bound(replace(place, experts=found.experts) if found and is_expert else place, elements)
            self._count(place)
        return elements

    def _given_rows(self, place: ReadPlace) -> int | None:
        """Return the number of selected elements that the user set for this line, and count the read as an assumption."""
        for one in self._assumed:
            if type(one.value) is int and one.value >= 0 and not one.is_balanced and _is_for(one, place):
                self._read_assumed.add(one)
                self._count(replace(place, kind="used_number", assumed=f"{one.value} (--assume)"))
                return one.value
        return None

    def _all_true(self, place: ReadPlace, most: int, size_bytes: int) -> int:
        """Return the bytes of a number of true elements that is no length, and count the read: all of them.

        Programs divide by such numbers, and compare with them whether there is something to do.
        """
        number = min(1, most) if self._selects_fewest else most
        self._count(replace(place, assumed=f"{number}, as if that many elements of a mask were true"))
        return bits_of(number, size_bytes, number_types.reads_float() is True) or 0

    def _bound(self, place: ReadPlace, elements: int) -> int:
        """Count a selection, and return how many elements it has in this run: all, or one at most."""
        self._count(replace(place, kind="largest", assumed="one element" if self._selects_fewest else "every element"))
        return min(1, elements) if self._selects_fewest else elements

    @guarded("the lengths of sequences")
    def lengths(self, frame: FrameType | None, size_bytes: int) -> None:
        """Count a read of lengths that were replaced."""
        place = place_of(size_bytes, ["ctc_loss"], frame)
        self._count(replace(place, kind="used_number", assumed="lengths, taken as equal and as long as they can be"))

    def text_ends(self, frame: FrameType | None) -> bool:
        """Return whether a generated text ends before its limit, and count the read: it does in a run with few elements."""
        with guarded("the end of a text"):
            assumed = "one token" if self._selects_fewest else "every token up to its limit"
            self._count(replace(place_of(0, ["generate"], frame), kind="largest", assumed=assumed))
        return self._selects_fewest

    def _count(self, place: ReadPlace) -> None:
        with self._mutex:
            self._counts[place] = self._counts.get(place, 0) + 1
            count = self._in_step[place] = self._in_step.get(place, 0) + 1
        if count == MOST_READS and self.waits_at is None:
            self.waits_at = place.via or f"{Path(place.file or '').name}:{place.line}"
            self._on_stuck()


def _most(place: ReadPlace, size_bytes: int, operations: Sequence[str]) -> int | None:
    """Return the largest size that a result can have, where its size is read and has a bound. None elsewhere."""
    if size_bytes not in WIDTHS:
        return None
    if not COALESCING.isdisjoint(operations):
        return sparse_entries.now()
    return result_sizes.most_different() if place.operation in result_sizes.UNIQUE else None


def _is_for(one: AssumedValue, place: ReadPlace) -> bool:
    """Whether an assumption is for this read: for the user's line, or for that of an installed package which reads."""
    file, _, line = (place.via or "").rpartition(":")
    return one.is_for(place.file, place.line) or (line.isdecimal() and one.is_for(file, int(line)))
