"""Where the error happened: the Python stack, the user's own lines in it, and whose method runs in a frame of it."""

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


def wants_gradients(frames: Iterable[FrameType]) -> bool:
    """Of the forward on this stack. Within a function of autograd's (a compiled graph, a reentrant checkpoint) gradients are off in
    any case: there the outermost model's mode says it."""
    import torch

    if torch.is_grad_enabled():
        return True
    frames = list(frames)
    code = torch.autograd.Function.apply.__func__.__code__
    models = [module for frame in reversed(frames) if (module := module_of(frame)) is not None]
    return any(frame.f_code is code for frame in frames) and bool(models) and models[0].training


def given_to(frame: FrameType) -> list[Any]:
    """What a method was given, without the module itself."""
    code, values = frame.f_code, locals_of(frame)
    flags = code.co_flags
    count = code.co_argcount + code.co_kwonlyargcount + bool(flags & CO_VARARGS) + bool(flags & CO_VARKEYWORDS)
    return [values.get(name) for name in code.co_varnames[1:count]]
