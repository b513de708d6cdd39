"""Values that a program reads from an emulated GPU, where nothing is computed.

The emulated driver calls back for each copy from the device to the host whose content no host code wrote. So no read is
missed, whichever function causes it. The C stack names PyTorch's operation, the Python stack the line.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

from vramscope.dry_run import host_masks, number_types, result_sizes, routing, sequence_lengths, sparse_entries
from vramscope.dry_run.branches import Question, question_of, span_now
from vramscope.dry_run.slice_ends import is_growing_length, is_slice_end
from vramscope.dry_run.uses import decides, is_length
from vramscope.guard import guarded
from vramscope.process import patching
from vramscope.process.frames import is_library, is_own, is_torch
from vramscope.protocol.assumed_value import AssumedValue, bits_of
from vramscope.protocol.dry_run import Read, ReadKind

SHAPE_OPERATIONS: Final = frozenset(
    {
        "nonzero", "nonzero_numpy", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
        "bincount", "repeat_interleave_Tensor", "_index_put_impl_", "coalesce", "_coalesce",
    }
)  # fmt: skip
"""Operations whose result has a size that depends on data."""
WRAPPERS: Final = frozenset(
    str(one.__file__)
    for one in (host_masks, number_types, patching, result_sizes, routing, sequence_lengths, sparse_entries)
)
"""Files whose functions stand between the program and PyTorch's. They read nothing of the device themselves."""
COALESCING: Final = frozenset({"coalesce", "_coalesce"})
"""Operations that read the number of different entries of a sparse tensor."""
SYNCHRONIZED: Final = "torch/nn/modules/_functions.py"
"""End of the file with SyncBatchNorm, which leaves out ranks without rows. Each rank of a training has rows."""
RECURRENT_OPERATIONS: Final = re.compile(r"(lstm|gru|rnn_tanh|rnn_relu)_(input|data)")
"""Matches operations of recurrent networks. They read one number, the seed of their dropout."""
FINITE: Final = re.compile(r"isnan|isinf|isfinite|finite|overflow|found_inf")
"""Matches lines that test whether numbers are finite."""
NOT_FINITE: Final = re.compile(r"isnan|isinf|overflow|found_inf|non_?finite")
"""Matches lines that test whether numbers are not finite. The result is false in a normal training."""
READS_UNTIL_CHANGE: Final = 1000
"""Number of truth values that one line may read in one step before the opposite value is returned once. A loop may wait for it."""
MOST_READS: Final = 50_000
"""Number of reads by one line in one step from which on a loop counts as stuck: it waits for a value that never comes."""
NUMBER_BYTES: Final = 8
WIDTHS: Final = (4, 8)
"""Bytes of an integer."""
SMALL_BYTES: Final = 64 * 1024
"""Maximum bytes of a copy that may contain sizes or positions, on which the needed memory depends."""
LARGEST_END: Final = 1 << 30
"""Number that is read as the end of a slice. No dimension is longer, and it is exact in each type of 4 bytes or more."""
MOST_EXPRESSION: Final = 60
"""Number of characters up to which a condition is quoted."""
SHOWN_INSIDE: Final = frozenset({"branch", "used_number", "length"})
"""Kinds of reads for which a line of PyTorch itself is shown."""
WATCHER: Final = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p)
"""Function called for each read with its size, PyTorch's operations and the address of the result. It returns the first 8
bytes of the result; 0 leaves it unchanged."""


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """Line and purpose of a read."""

    kind: ReadKind
    operation: str
    file: str | None
    line: int | None
    function: str | None
    via: str | None
    assumed: str
    expression: str = ""
    experts: int | None = None


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
            place = _place(size_bytes, operations.decode().split(), frame)
            given = self._read_of_experts(place, size_bytes, result)
            if given is None:
                given = self._given(place, size_bytes)
            if given is not None:
                return given
            if (most := _most(place, size_bytes)) is not None:
                return self._bound(place, most)
            if place.kind == "largest":
                most = number_types.most()
                end = self._bound(place, LARGEST_END if most is None else most)
                return bits_of(end, size_bytes, number_types.reads_float() is True) or 0
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
                if is_size and place.operation == "bincount" and bits:
                    bits -= 1  # it reads the largest number, and counts from 0
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

        It is all elements, or those of one expert if balanced experts are assumed.
        """
        with guarded("a result of the largest size"):
            if frame is not None and frame.f_code.co_filename.endswith(SYNCHRONIZED):
                return elements
            if frame is not None and is_own(frame.f_code.co_filename):
                return elements
            place = _place(0, ["nonzero"], frame)
            one, found = self._balanced(place), routing.last()
            if one is not None and found is not None and (rows := found.selected(elements)) < elements:
                self._count_balanced(place, one, found)
                return rows
            if place.kind != "print":
                is_expert = found is not None and found.looks_like_experts(elements)
                return self._bound(replace(place, experts=found.experts) if found and is_expert else place, elements)
            self._count(place)
        return elements

    def _bound(self, place: ReadPlace, elements: int) -> int:
        """Count a selection, and return how many elements it has in this run: all, or one at most."""
        self._count(replace(place, kind="largest", assumed="one element" if self._selects_fewest else "every element"))
        return min(1, elements) if self._selects_fewest else elements

    @guarded("the lengths of sequences")
    def lengths(self, frame: FrameType | None, size_bytes: int) -> None:
        """Count a read of lengths that were replaced."""
        place = _place(size_bytes, ["ctc_loss"], frame)
        self._count(replace(place, kind="used_number", assumed="lengths, taken as equal and as long as they can be"))

    def text_ends(self, frame: FrameType | None) -> bool:
        """Return whether a generated text ends before its limit, and count the read: it does in a run with few elements."""
        with guarded("the end of a text"):
            assumed = "one token" if self._selects_fewest else "every token up to its limit"
            self._count(replace(_place(0, ["generate"], frame), kind="largest", assumed=assumed))
        return self._selects_fewest

    def _count(self, place: ReadPlace) -> None:
        with self._mutex:
            self._counts[place] = self._counts.get(place, 0) + 1
            count = self._in_step[place] = self._in_step.get(place, 0) + 1
        if count == MOST_READS and self.waits_at is None:
            self.waits_at = place.via or f"{Path(place.file or '').name}:{place.line}"
            self._on_stuck()


def _most(place: ReadPlace, size_bytes: int) -> int | None:
    """Return the largest size that a result can have, where its size is read and has a bound. None elsewhere."""
    if size_bytes not in WIDTHS:
        return None
    if place.operation in COALESCING:
        return sparse_entries.now()
    return result_sizes.most_different() if place.operation in result_sizes.UNIQUE else None


def _is_for(one: AssumedValue, place: ReadPlace) -> bool:
    """Whether an assumption is for this read: for the user's line, or for that of an installed package which reads."""
    file, _, line = (place.via or "").rpartition(":")
    return one.is_for(place.file, place.line) or (line.isdecimal() and one.is_for(file, int(line)))


def _place(size_bytes: int, operations: list[str], frame: FrameType | None) -> ReadPlace:
    """Return the user's line of a read, and the purpose of the value, from the frames and PyTorch's operations."""
    innermost: FrameType | None = None
    library: FrameType | None = None
    formats = saves = False
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_own(file):
            innermost = innermost or frame
            formats = formats or (is_torch(file) and file.endswith("_tensor_str.py"))
            saves = saves or (is_torch(file) and file.endswith("torch/serialization.py"))
            if not is_library(file):
                break
            if library is None and not is_torch(file):
                library = frame
        frame = frame.f_back
    kind, assumed = _purpose(size_bytes, operations, innermost, library or frame)
    shown = innermost if kind in SHOWN_INSIDE and innermost is not frame else library
    return ReadPlace(
        kind="print" if formats else "copy" if saves else kind,  # nothing depends on what torch.save() writes
        operation=operations[0] if operations else "",
        file=None if frame is None else frame.f_code.co_filename,
        line=None if frame is None else frame.f_lineno,
        function=None if frame is None else frame.f_code.co_name,
        via=None if shown is None else _short(shown),
        assumed=assumed,
        expression=_expression(innermost) if kind == "branch" and innermost is not None else "",
    )


def _expression(frame: FrameType) -> str:
    """Return the source of the condition that a frame evaluates, or of its line; empty if it is long."""
    text = " ".join(question_of(frame).text.split())
    return text if len(text) <= MOST_EXPRESSION else ""


def _short(frame: FrameType) -> str:
    """Format a line of an installed package: ``transformers/trainer.py:3801``."""
    file = frame.f_code.co_filename
    return f"{file.rpartition('site-packages/')[2] if 'site-packages/' in file else Path(file).name}:{frame.f_lineno}"


def _purpose(
    size_bytes: int, operations: list[str], innermost: FrameType | None, frame: FrameType | None
) -> tuple[ReadKind, str]:
    """Return the purpose of a value, from PyTorch's operations and the source code.

    innermost   the frame that reads it, which may be PyTorch's
    frame       the innermost frame outside PyTorch
    """
    if not SHAPE_OPERATIONS.isdisjoint(operations):
        return "shape", "nothing"
    scalar = "item" in operations or "_local_scalar_dense" in operations
    if scalar and size_bytes == 1:
        question = Question("", None) if innermost is None else question_of(innermost)
        if FINITE.search(question.text):
            return "check", str(not NOT_FINITE.search(question.text))
        return "check" if question.is_check else "branch", str(question.expected is not False)
    is_float = number_types.reads_float()
    if operations and RECURRENT_OPERATIONS.fullmatch(operations[0]) and size_bytes == NUMBER_BYTES:
        return "number", "0"
    reading = None if frame is None else span_now(frame)
    is_used = frame is not None and decides(frame.f_code.co_filename, frame.f_lineno, reading)
    if not scalar and (operations or size_bytes > 8):
        return "used_copy" if is_used or (size_bytes <= SMALL_BYTES and not is_float) else "copy", "zeros"
    is_integer = frame is not None and innermost is frame and size_bytes in WIDTHS
    if is_integer and frame is not None and is_slice_end(frame.f_code.co_filename, reading):
        return "largest", "every element"
    is_known = is_used or reading is not None  # a line alone may have a length that another expression reads
    if is_known and frame is not None and is_length(frame.f_code.co_filename, frame.f_lineno, reading):
        counts_mask = is_integer and number_types.most() is not None
        if counts_mask and is_growing_length(frame.f_code.co_filename, reading):
            return "largest", "every element"
        return "length", "0"
    return "number" if is_float and not is_used else "used_number", "0"
