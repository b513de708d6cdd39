"""Where and for what a program reads a value of the device: the user's line, PyTorch's operation, and the purpose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from vramscope.dry_run import number_types
from vramscope.dry_run.branches import Question, question_of, read_expression, span_now
from vramscope.dry_run.finite_checks import healthy_value
from vramscope.dry_run.read_use import is_read_length, is_used
from vramscope.dry_run.slice_ends import is_growing_length, is_slice_end
from vramscope.process.frames import is_library, is_own, is_torch
from vramscope.protocol.dry_run import ReadKind

SHAPE_OPERATIONS: Final = frozenset(
    {
        "nonzero", "nonzero_numpy", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
        "unique_dim_consecutive",
        "bincount", "one_hot", "repeat_interleave_Tensor", "_index_put_impl_", "coalesce", "_coalesce",
    }
)  # fmt: skip
"""Operations whose result has a size that depends on data."""
COMPUTED_AS: Final = {
    "_bincount_cuda": "bincount",
    "_unique_cuda": "_unique",
    "_unique2_cuda": "_unique2",
    "unique_dim_cuda": "unique_dim",
    "unique_consecutive_cuda": "unique_consecutive",
    "unique_dim_consecutive_cuda": "unique_dim_consecutive",
    "repeat_interleave_cuda": "repeat_interleave_Tensor",
}
"""Function that computes an operation of SHAPE_OPERATIONS on the device -> the operation. TorchScript calls no other."""
COUNTED_FROM_0: Final = frozenset({"bincount", "one_hot"})
"""Operations of SHAPE_OPERATIONS that read the largest number, and whose result has one size more."""
RECURRENT_OPERATIONS: Final = re.compile(r"(lstm|gru|rnn_tanh|rnn_relu)_(input|data)")
"""Matches operations of recurrent networks. They read one number, the seed of their dropout."""
NUMBER_BYTES: Final = 8
WIDTHS: Final = (4, 8)
"""Bytes of an integer."""
SMALL_BYTES: Final = 64 * 1024
"""Maximum bytes of a copy that may contain sizes or positions, on which the needed memory depends."""
MOST_EXPRESSION: Final = 60
"""Number of characters up to which a condition is quoted."""
SHOWN_INSIDE: Final = frozenset({"branch", "used_number", "length"})
"""Kinds of reads for which a line of PyTorch itself is shown."""


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


def named_operations(names: str) -> list[str]:
    """Return PyTorch's operations on the native stack, from the names of functions there. The outermost comes first."""
    found = names.split()
    called = [name for name in found if not name.endswith("_cuda")]
    computed = [COMPUTED_AS[name] for name in found if name in COMPUTED_AS]
    return called if not SHAPE_OPERATIONS.isdisjoint(called) else computed + called


def place_of(size_bytes: int, operations: list[str], frame: FrameType | None) -> ReadPlace:
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
        healthy = None if innermost is None else healthy_value(read_expression(innermost))
        if healthy is not None:
            return "check", str(healthy)
        return "check" if question.is_check else "branch", str(question.expected is not False)
    is_float = number_types.reads_float()
    if operations and RECURRENT_OPERATIONS.fullmatch(operations[0]) and size_bytes == NUMBER_BYTES:
        return "number", "0"
    reading = None if frame is None else span_now(frame)
    decides = frame is not None and is_used(frame)
    if not scalar and (operations or size_bytes > 8):
        return "used_copy" if decides or (size_bytes <= SMALL_BYTES and not is_float) else "copy", "zeros"
    is_integer = frame is not None and innermost is frame and size_bytes in WIDTHS
    if is_integer and frame is not None and is_slice_end(frame.f_code.co_filename, reading):
        return "largest", "every element"
    is_known = decides or reading is not None  # a line alone may have a length that another expression reads
    counts_mask = is_integer and number_types.most() is not None
    if counts_mask and frame is not None and is_growing_length(frame.f_code.co_filename, reading):
        return "largest", "every element"
    if is_known and frame is not None and is_read_length(frame):
        return "length", "0"
    return "number" if is_float and not decides else "used_number", "0"
