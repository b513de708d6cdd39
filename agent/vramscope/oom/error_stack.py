"""Python stack of an error: the user's own lines in it, and the modules whose methods run in its frames."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FrameType
from typing import TYPE_CHECKING, Any

from vramscope.process.frames import is_library, locals_of
from vramscope.process.frames import is_own as is_ours
from vramscope.protocol.oom_record import MAX_FRAMES, Frame

if TYPE_CHECKING:
    import torch


def stack_of(frame: FrameType | None) -> list[FrameType]:
    """Frames from this one outwards, without the agent's own."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        if not is_ours(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


def frames_now() -> list[FrameType]:
    """Frames of this thread. Of autograd's thread: with those of the main thread, which waits in ``backward()`` then.

    The user's functions that autograd runs (a custom backward, a hook) come first.
    """
    here = stack_of(sys._getframe(1))
    main = threading.main_thread().ident
    if main is None or threading.get_ident() == main or not is_backward_thread():
        return here
    return (here + stack_of(sys._current_frames().get(main)))[:MAX_FRAMES]


def backward_runs_python() -> bool:
    """Whether autograd's thread runs a Python function here: a custom backward, or a hook. Its locals are gradients."""
    return threading.current_thread() is not threading.main_thread() and bool(stack_of(sys._getframe(1)))


def is_backward_thread() -> bool:
    """Whether this thread runs a backward."""
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


def as_record(frames: Iterable[FrameType]) -> list[Frame]:
    """Frames for the record."""
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
    """Whether a file is the user's: not part of Python, of an installed package, or of the agent."""
    return file == "<string>" or not (is_library(file) or is_ours(file))


def module_of(frame: FrameType) -> torch.nn.Module | None:
    """Module whose own method runs in this frame, or whose call begins in it."""
    import torch

    code = frame.f_code
    # A decorated forward (all of transformers' are) is no method of its class; the call around it knows the module.
    if code is torch.nn.Module._wrapped_call_impl.__code__:
        module: torch.nn.Module | None = locals_of(frame).get("self")
        return module
    if not code.co_argcount or frame.f_trace is not None:
        return None
    this = locals_of(frame).get(code.co_varnames[0])
    # type(), not isinstance: lazy proxies run code when they are asked for their class.
    if not issubclass(type(this), torch.nn.Module) or code.co_name.startswith("_"):
        return None
    # A function whose first argument is a module is no method of it.
    own = (getattr(vars(kind).get(code.co_name), "__code__", None) for kind in type(this).__mro__)
    return this if code in own else None


def runs_optimizer(frame: FrameType) -> bool:
    """Whether a frame is of an optimizer's step, or of PyTorch's call around it."""
    code = frame.f_code
    return code.co_name == "step" or code.co_filename.replace("\\", "/").endswith("torch/optim/optimizer.py")


def has_graph(frame: FrameType) -> bool:
    """Whether a local variable of a frame is a result with a graph. Tensors of the user's classes do not count: they run code."""
    import torch

    return any(type(one) is torch.Tensor and one.grad_fn is not None for one in locals_of(frame).values())


def wants_gradients(frames: Iterable[FrameType]) -> bool:
    """Whether the forward on this stack records gradients.

    Within a function of autograd (a compiled graph, a reentrant checkpoint) gradients are always off. There the
    outermost model's mode decides.
    """
    import torch

    if torch.is_grad_enabled():
        return True
    frames = list(frames)
    models = [module for frame in reversed(frames) if (module := module_of(frame)) is not None]
    return bool(models) and models[0].training and any(map(_runs_autograd_function, frames))


def _runs_autograd_function(frame: FrameType) -> bool:
    """Whether the frame is the forward of an autograd function. Its first argument is the function's context.

    A forward without that argument is recognized up to PyTorch 2.14, where its caller is a Python function.
    """
    from torch.autograd import Function
    from torch.autograd.function import FunctionCtx

    code = frame.f_code
    if code is getattr(getattr(Function.apply, "__func__", None), "__code__", None):
        return True
    if not code.co_argcount or frame.f_trace is not None:
        return False
    return issubclass(type(locals_of(frame).get(code.co_varnames[0])), FunctionCtx)


def arguments_of(frame: FrameType) -> list[Any]:
    """Arguments of a method, without the module itself."""
    code, values = frame.f_code, locals_of(frame)
    flags = code.co_flags
    count = code.co_argcount + code.co_kwonlyargcount + bool(flags & CO_VARARGS) + bool(flags & CO_VARKEYWORDS)
    return [values.get(name) for name in code.co_varnames[1:count]]
