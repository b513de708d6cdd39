"""Where the error happened: the Python stack, the user's own lines in it, and the modules that were running."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

from vramscope.black_box import MAX_FRAMES, Frame
from vramscope.graphs.roots import is_library, locals_of
from vramscope.graphs.roots import is_own as is_ours

if TYPE_CHECKING:
    import torch


WIDTHS: Final = ("out_features", "out_channels", "embedding_dim", "num_features", "nf")
"""attributes that tell the width of a module's output; ``nf`` is that of transformers' Conv1D"""
LIKE_THE_OUTPUT: Final = 3
"""of the size of a model's output, that a loss makes and its backward begins with: log-softmax, and two gradients"""


class Running(NamedTuple):
    """The module that ran, and how far its model was."""

    name: str
    progress: float | None


def stack_of(frame: FrameType | None) -> list[FrameType]:
    """The frames from this one outwards, without the agent's own."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        if not is_ours(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


def frames_now() -> list[FrameType]:
    """Of this thread; where it is autograd's, of the main thread, which waits in ``backward()`` then.

    A function of the user's own that autograd runs (a custom backward, a hook) stands before the rest.
    """
    here = stack_of(sys._getframe(1))
    main = threading.main_thread().ident
    if main is None or threading.get_ident() == main or not is_autograds():
        return here
    return (here + stack_of(sys._current_frames().get(main)))[:MAX_FRAMES]


def is_autograds() -> bool:
    """Whether this thread walks a graph backward."""
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


def told(frames: Iterable[FrameType]) -> list[Frame]:
    """As the record keeps them."""
    return [
        Frame(
            file=frame.f_code.co_filename[:4096],
            line=frame.f_lineno or 0,
            function=getattr(frame.f_code, "co_qualname", frame.f_code.co_name)[:4096],
            own=is_own(frame.f_code.co_filename),
        )
        for frame in frames
    ]


def is_own(file: str) -> bool:
    """Whether a file is the user's: no part of Python, of an installed package, or of ours."""
    return file == "<string>" or not (is_library(file) or is_ours(file))


def running(frames: Iterable[FrameType], roots: Iterable[torch.nn.Module]) -> Running | None:
    """The innermost module of a known model whose forward is on the stack; None where there is none."""
    roots = list(roots)
    for frame in frames:
        module = module_of(frame)
        if module is None:
            continue
        for root in roots:
            for name, child in root.named_modules():
                if child is module:
                    return Running(name or type(root).__name__, _progress(root, module))
    return None


def module_of(frame: FrameType) -> torch.nn.Module | None:
    """The module whose own method runs in this frame, or whose call begins in it."""
    import torch

    code = frame.f_code
    # A decorated forward is no method of its class any more (all of transformers' are); the call around it knows the module.
    if code is torch.nn.Module._wrapped_call_impl.__code__:
        module: torch.nn.Module | None = locals_of(frame).get("self")
        return module
    if not code.co_argcount or frame.f_trace is not None:
        return None
    this = locals_of(frame).get(code.co_varnames[0])
    # type(), not isinstance: lazy proxies run code when they are asked for their class.
    if not issubclass(type(this), torch.nn.Module) or code.co_name.startswith("_"):
        return None
    # A function that is given a module first is no method of it.
    own = (getattr(vars(kind).get(code.co_name), "__code__", None) for kind in type(this).__mro__)
    return this if code in own else None


def _progress(root: torch.nn.Module, module: torch.nn.Module) -> float | None:
    """How far a forward is when this module runs: what the root's childless modules up to it give back, as a share of all of them
    and of the loss, each by the width of its output.

    Of a language model the last module's output is wider than all before it, and a loss of several classes makes more of that
    size: copies in 32 bits, their softmax, gradients.
    """
    leaves = list(_leaves(root))
    inside = set(map(id, _leaves(module)))
    first = next((place for place, leaf in enumerate(leaves) if id(leaf) in inside), None)
    if first is None or module is root:
        return None
    widths = _widths(leaves)
    # Of a module with children it is not known which of them ran: the first is the safe answer.
    return sum(widths[: first + 1]) / (sum(widths) + LIKE_THE_OUTPUT * widths[-1])


def _widths(leaves: Iterable[torch.nn.Module]) -> list[int]:
    """Of each one's output, as its own attributes tell it; where they do not (ReLU, Dropout), as of the one before it."""
    widths: list[int] = []
    for leaf in leaves:
        told = (vars(leaf).get(name) for name in WIDTHS)
        width = next((value for value in told if type(value) is int and value > 0), None)
        widths.append(width or (widths[-1] if widths else 1))
    return widths


def _leaves(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.modules():
        if next(child.children(), None) is None:
            yield child
