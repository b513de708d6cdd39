"""Keeps torch.compile away from the agent's own code.

Dynamo compiles each Python frame that runs inside a compiled region, and follows each call that it traces. Nothing of the agent
may be compiled: it costs time, prints warnings, and retains the user's tensors in caches and guards.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeVar

_PACKAGE: Final = __name__.partition(".")[0]
H = TypeVar("H", bound=Callable[..., None])


_set: Final[dict[int, CodeType]] = {}
"""Code objects by identity whose treatment by Dynamo is already set."""


def skip_frames(code: CodeType, *, below: bool) -> None:
    """Let Dynamo run frames of this code as they are; with ``below`` also all frames that they call.

    This costs nothing in a call. PyTorch before 2.7 has only the first part.

    """
    _skip_frames([code], below=below)


def _skip_frames(codes: Iterable[CodeType], *, below: bool) -> None:
    eval_frame: Any = sys.modules.get("torch._C._dynamo.eval_frame")  # nothing is compiled without it
    if eval_frame is None:
        return
    skip: Callable[[CodeType], object] = getattr(eval_frame, "skip_code", lambda code: None)
    if hasattr(eval_frame, "set_code_exec_strategy"):
        action, set_strategy = eval_frame._FrameAction, eval_frame.set_code_exec_strategy
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP if below else action.DEFAULT)

        def skip(code: CodeType) -> None:
            set_strategy(code, strategy)

    for code in codes:
        _set[id(code)] = code
        skip(code)


def skip_own_frames() -> None:
    """Let Dynamo run all functions of the agent as they are, whoever calls them: hooks, weak references, the collector.

    Takes about 5 ms the first time. Functions that call the user's code are marked by :func:`skip_frames` one by one.

    """
    if "torch._C._dynamo.eval_frame" not in sys.modules:
        return
    own = [(name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] == _PACKAGE]
    codes = chain.from_iterable(_codes_of(module, name) for name, module in own)
    _skip_frames([code for code in codes if id(code) not in _set], below=True)


def _codes_of(module: ModuleType, name: str) -> Iterator[CodeType]:
    """The code of all functions that a module defines."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != name:
            continue
        for one in list(vars(value).values()) if isinstance(value, type) else (value,):
            function = one if type(one) is FunctionType else getattr(one, "__func__", getattr(one, "fget", one))
            if hasattr(function, "__wrapped__"):
                function = inspect.unwrap(function)
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield from _with_inner(code)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def outside_of_graphs(hook: H) -> H:
    """Mark a hook, so that Dynamo traces a function without statements in its place. Outside of Dynamo this costs nothing."""
    function: Any = hook
    function._torchdynamo_inline = _does_nothing
    skip_frames(function.__code__, below=True)
    return hook


def _does_nothing(*_: Any) -> None:
    """What Dynamo traces in place of a hook."""
