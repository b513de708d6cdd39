"""How the numeric code of this room is compiled: by numba, to machine code, without the interpreter's lock."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numba
from numba import njit
from numba.core import event
from numba.core.registry import cpu_target

F = TypeVar("F", bound=Callable[..., Any])

inner: Final = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorates what is called by compiled code alone: without an entry for Python it compiles in half the time."""


def entry(function: F) -> F:
    """Decorates what Python calls. The machine code is kept on disk, beside the source or in the user's cache folder.

    Where neither can be written (a container that is read-only throughout), each process compiles for itself.
    """
    return _kept(function)


def _kept(function: F, **options: Any) -> F:
    try:
        kept: F = njit(cache=True, error_model="numpy", nogil=True, **options)(function)
    except RuntimeError:  # numba's word for it: "no locator available"
        kept = njit(error_model="numpy", nogil=True, **options)(function)
    # numba looks at the function's own file alone, and what it calls is compiled into it: after an upgrade that changed
    # another file only, old machine code would go on. (Its own words for "stale" have no public way in.)
    file = getattr(getattr(kept, "_cache", None), "_cache_file", None)
    if file is not None:
        file._source_stamp = (file._source_stamp, _sources())
    return kept


def kept_in() -> Path | None:
    """The folder in which numba keeps the machine code of this room; None where there is none to write to."""
    path = getattr(getattr(_probe, "_cache", None), "cache_path", None)
    return None if path is None else Path(path)


def compiling() -> bool:
    """Whether this process makes machine code at the moment: it takes seconds, and up to a minute after an installation."""
    return _compilations.running > 0


class _Compilations(event.Listener):  # type: ignore[misc]  # numba tells no types
    """Counts those that have begun and not ended; reading machine code from the disk is none."""

    def __init__(self) -> None:
        self.running = 0
        self._lock = threading.Lock()

    def on_start(self, event: event.Event) -> None:
        self._add(1)

    def on_end(self, event: event.Event) -> None:
        self._add(-1)

    def _add(self, change: int) -> None:
        with self._lock:
            self.running += change


_compilations: Final = _Compilations()
event.register("numba:compile", _compilations)


def version() -> str:
    """Changes with all that the machine code depends on: our sources, numba, Python and the processor."""
    processor = cpu_target.target_context.codegen().magic_tuple()  # as numba's own index has it
    parts = (_sources(), numba.__version__, sys.version, *processor)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


@cache
def _sources() -> str:
    """A digest of all files of this room that are compiled. 2 ms, once."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"analysis.compiled import" in source:
            digest.update(source)
    return digest.hexdigest()


# ---- for code that makes no arrays ----
# numba counts the references to arrays. Where code hands on a tuple of many, the counting takes ten times as long as the work.

lean: Final = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)
"""As ``inner``, without counting."""
fused: Final = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, forceinline=True)
"""As ``lean``, for small hot functions: they become part of their callers."""


def lean_entry(function: F) -> F:
    """As ``entry``, without counting."""
    return _kept(function, _nrt=False)


@entry
def _probe() -> int:
    """Never called: numba says of it where it would be kept."""
    return 0
