"""Programs of the same shape as those whose memory others published. Each returns the bytes that its source names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

Program = Callable[..., Mapping[str, float]]
PROGRAMS: Final[dict[str, Program]] = {}


def program(function: Program) -> Program:
    """Register a program under the name of its function."""
    PROGRAMS[function.__name__] = function
    return function


def load_all() -> None:
    """Import the modules with programs."""
    from published_programs import blocks, convolutions, distributed, language_models, operations  # noqa: F401
