"""How the numeric code of this room is compiled: by numba, to machine code, without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

inner: Final = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorates what is called by compiled code alone: without an entry for Python it compiles in half the time."""


def entry(function: F) -> F:
    """Decorates what Python calls. The machine code is kept on disk, beside the source or in the user's cache folder.

    Where neither can be written (a container that is read-only throughout), each process compiles for itself.
    """
    try:
        kept: F = njit(cache=True, error_model="numpy", nogil=True)(function)
    except RuntimeError:  # numba's word for it: "no locator available"
        kept = njit(error_model="numpy", nogil=True)(function)
    return kept
