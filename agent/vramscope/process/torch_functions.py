"""Keeps ``__torch_function__`` of the user's tensor classes and modes out of the agent's own questions to tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def plainly(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function of the agent without them. A mode that counts or prints operations would see the agent's else."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        import torch

        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return run
