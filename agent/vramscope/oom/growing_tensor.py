"""The one tensor that is made longer and longer, where memory ran out while it was: ``found = torch.cat([found, new])``.

The old one stays until the longer one is there, and what the shorter ones have left behind is too small for it: such a death looks
like fragmentation, and with the pieces in one it would come a little later. What proves it is the request: as many bytes as two
tensors have that the code in question can reach, alike but in one dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.leaks.scan.object_children import Shapes, children
from vramscope.oom_diagnosis.cause import amount
from vramscope.oom_diagnosis.facts import place
from vramscope.process.frames import is_own, locals_of
from vramscope.protocol import messages

if TYPE_CHECKING:
    import torch

ROUNDING: Final = 2 << 20
"""the allocator asks CUDA for whole multiples of this where more than 10 MiB are wanted"""
LEAST_TIMES: Final = 2
"""as long as what is added: before that it may be two things that are joined once"""
FRAMES_WITHIN: Final = 4
"""from the one that asked: helpers between a library's call and the tensors"""
MOST_VALUES: Final = 64
"""of a container or an object that are looked at"""
MOST_IN_ALL: Final = 4096
"""of a frame, one step on; some 1 µs each"""


class Lengthened(NamedTuple):
    """What is lengthened, and by whom it is held: the outermost variable that leads to it."""

    name: str
    held_bytes: int
    piece_bytes: int
    """that it was to be longer by"""
    shape: str
    file: str
    line: int
    function: str


def lengthened(frames: Sequence[FrameType], asked_bytes: int | None) -> Lengthened | None:
    """``frames``: of the thread that asked, innermost first. None where the request is no such sum. Some 0.1 ms a frame."""
    if not asked_bytes:
        return None
    frames = [frame for frame in frames if frame.f_trace is None and not is_own(frame.f_code.co_filename)]
    pair = next((pair for frame in frames[:FRAMES_WITHIN] if (pair := _pair(frame, asked_bytes))), None)
    if pair is None:
        return None
    long, piece = pair
    holder = None
    globals_ = {id(frame.f_globals) for frame in frames}
    for frame in frames:
        name = next((name for name, tensor in _tensors(frame, globals_) if tensor is long), None)
        # (Whoever runs a file's code in a namespace of his own has the same names, and is not where they are used.)
        if name is not None and not (holder and holder[0] == name and holder[1].f_globals is frame.f_locals):
            holder = name, frame
    assert holder is not None  # the frame of the pair has it
    name, frame = holder
    return Lengthened(
        name=name,
        held_bytes=long.nbytes,
        piece_bytes=piece.nbytes,
        shape=f"{str(long.dtype).removeprefix('torch.')}{list(long.shape)} on {long.device}",
        file=frame.f_code.co_filename,
        line=frame.f_lineno or 1,
        function=frame.f_code.co_name,
    )


def as_leak(found: Lengthened, step: int) -> messages.Leak:
    """In the words of the leaks: one tensor that grows."""
    at = place(found.file, found.line)
    aid = "keep the pieces in a list on the host (.cpu()) and join them once, at the end"
    if "transformers" in found.file:
        aid = "eval_accumulation_steps in TrainingArguments takes it to the host, preprocess_logits_for_metrics keeps less"
    return messages.Leak(
        kind="tensor-growth",
        name=found.name,
        holder=f"'{found.name}' of {found.function}(), at {at}",
        chain=[f"'{found.name}' of {found.function}()", found.shape],
        file=found.file,
        line=found.line,
        function=found.function,
        count=1,
        first_step=step,
        last_step=step,
        held_bytes=found.held_bytes,
        exclusive_bytes=found.held_bytes,
        peak_effect="memory ran out while it was lengthened",
        advice=f"it was to be longer by {amount(found.piece_bytes)}, and the old one stays until the longer one is there: {aid}",
        examples=[found.shape],
    )


def _pair(frame: FrameType, asked_bytes: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The longer and the shorter of two tensors that make up the request."""
    tensors = list({id(tensor): tensor for _, tensor in _tensors(frame)}.values())
    for long in tensors:
        for piece in tensors:
            if (
                long.nbytes >= LEAST_TIMES * piece.nbytes
                and piece.nbytes >= ROUNDING  # (less is lost in the rounding: it could be a copy of the one)
                and 0 <= asked_bytes - long.nbytes - piece.nbytes < ROUNDING
                and long.dtype == piece.dtype
                and long.dim() == piece.dim()
                and sum(a != b for a, b in zip(long.shape, piece.shape, strict=True)) == 1
            ):
                return long, piece
    return None


def _tensors(frame: FrameType, globals_: Collection[int] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """CUDA tensors that a frame's variables lead to, with their names: themselves, in containers and attributes, one step on.

    globals_   ids of variables' values that are left out: dicts of a module's own names, which whoever runs it has in hand
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
