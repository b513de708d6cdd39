"""A tensor that is extended again and again, where memory ran out while it was: ``found = torch.cat([found, new])``.

The old tensor stays until the longer one exists, and the blocks of the shorter ones are too small for it. Such an error
looks like fragmentation, but in one block it would only come a little later. The proof is the request: it has the size
of two tensors that the code can reach and that differ in one dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.leaks.scan.object_children import Shapes, children
from vramscope.oom_diagnosis.facts import line_of
from vramscope.process.frames import is_own, locals_of
from vramscope.protocol import messages
from vramscope.protocol.number_format import amount

if TYPE_CHECKING:
    import torch

ROUNDING: Final = 2 << 20
"""Above 10 MiB the allocator reserves whole multiples of this."""
LEAST_TIMES: Final = 2
"""Minimum ratio of the tensor's length to the addition. Before that, two tensors may be joined once."""
FRAMES_WITHIN: Final = 4
"""Frames from the request on: helpers between a library's call and the tensors."""
MOST_VALUES: Final = 64
"""Values of a container or an object that are examined."""
MOST_IN_ALL: Final = 4096
"""Values of a frame, one level deep; about 1 µs each."""


class GrowingTensor(NamedTuple):
    """The tensor, and the outermost variable that leads to it."""

    alike: int
    """Tensors that the same frames lead to and that are as long in the same dimension, itself included: hidden states of several
    layers, each of which is extended in turn."""

    name: str
    held_bytes: int
    piece_bytes: int
    """Bytes that were to be added."""
    shape: str
    file: str
    line: int
    function: str


def growing_tensor(frames: Sequence[FrameType], asked_bytes: int | None) -> GrowingTensor | None:
    """The tensor that the request extends; None where its size is no such sum. About 0.1 ms a frame.

    frames   of the requesting thread, innermost first
    """
    if not asked_bytes:
        return None
    frames = [frame for frame in frames if frame.f_trace is None and not is_own(frame.f_code.co_filename)]
    pair = next((pair for frame in frames[:FRAMES_WITHIN] if (pair := _pair(frame, asked_bytes))), None)
    if pair is None:
        return None
    long, piece = pair
    axis = next(at for at, (a, b) in enumerate(zip(long.shape, piece.shape, strict=True)) if a != b)
    alike: set[int] = set()
    holder = None
    globals_ = {id(frame.f_globals) for frame in frames}
    for frame in frames:
        found = list(_tensors(frame, globals_))
        alike |= {id(one) for _, one in found if one.dim() > axis and one.shape[axis] == long.shape[axis]}
        name = next((name for name, tensor in found if tensor is long), None)
        # A function that runs a file's code in its own namespace has the same names, but does not use them.
        if name is not None and not (holder and holder[0] == name and holder[1].f_globals is frame.f_locals):
            holder = name, frame
    assert holder is not None  # the frame of the pair has one
    name, frame = holder
    return GrowingTensor(
        alike=len(alike),
        name=name,
        held_bytes=long.nbytes,
        piece_bytes=piece.nbytes,
        shape=f"{str(long.dtype).removeprefix('torch.')}{list(long.shape)} on {long.device}",
        file=frame.f_code.co_filename,
        line=frame.f_lineno or 1,
        function=frame.f_code.co_name,
    )


def as_leak(found: GrowingTensor, step: int, held_bytes: int) -> messages.Leak:
    """A leak of the kind tensor-growth. Its growth per step is not known: nothing was scanned before."""
    at = line_of(found.file, found.line)
    aid = "keep the parts in a list on the host (.cpu()) and join them once, at the end"
    if "transformers" in found.file:
        aid = (
            "set eval_accumulation_steps in TrainingArguments to move it to the host, or preprocess_logits_for_metrics "
            "to keep less"
        )
    return messages.Leak(
        kind="tensor-growth",
        name=found.name,
        holder=f"'{found.name}' of {found.function}(), at {at}",
        chain=[f"'{found.name}' of {found.function}()", found.shape],
        file=found.file,
        line=found.line,
        function=found.function,
        count=found.alike,
        first_step=step,
        last_step=step,
        held_bytes=held_bytes,
        exclusive_bytes=held_bytes,
        peak_effect="memory ran out while it was extended",
        advice=f"{aid}. It was being extended by {amount(found.piece_bytes)}, and the old tensor stays until the new one exists",
        examples=[found.shape],
    )


def _pair(frame: FrameType, asked_bytes: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Longer and shorter tensor, if they add up to the request."""
    tensors = list({id(tensor): tensor for _, tensor in _tensors(frame)}.values())
    for long in tensors:
        for piece in tensors:
            if (
                long.nbytes >= LEAST_TIMES * piece.nbytes
                and piece.nbytes >= ROUNDING  # a smaller one is lost in the rounding
                and 0 <= asked_bytes - long.nbytes - piece.nbytes < ROUNDING
                and long.dtype == piece.dtype
                and long.dim() == piece.dim()
                and sum(a != b for a, b in zip(long.shape, piece.shape, strict=True)) == 1
            ):
                return long, piece
    return None


def _tensors(frame: FrameType, globals_: Collection[int] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """CUDA tensors that a frame's variables lead to, with their names: directly, in containers and in attributes.

    globals_   ids of values that are left out: a module's namespace, which the function that runs it has in a variable
    """
    import torch

    shapes: Shapes = {}
    level = [one for one in locals_of(frame).items() if id(one[1]) not in globals_]
    for _ in range(3):
        deeper: list[tuple[str, Any]] = []
        for name, value in level:
            if issubclass(type(value), torch.Tensor):
                if type(value) is torch.Tensor and value.is_cuda:
                    yield name, value
            elif not issubclass(type(value), (type, ModuleType)):
                within = itertools.islice(children(value, shapes), MOST_VALUES)
                deeper += [(name + label, inner) for label, inner in within]
        level = deeper[:MOST_IN_ALL]
