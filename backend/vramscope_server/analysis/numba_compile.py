"""How the numeric code of this room is compiled: by numba, to machine code, without the interpreter's lock.

Importing numba takes half a second and tens of megabytes, of which a server that only stores and shows series needs nothing:
a decorated function becomes numba's own when it is first called, by Python or by another one that is being compiled.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:

    def int64(value: Any) -> int:
        """As ``np.int64``, for what a compiled function is given: that one is compiled anew for each type of integer."""
else:
    int64 = np.int64


class Compiled:
    """A function that numba compiles, and does not know of before it is needed."""

    _making: Final = threading.RLock()
    """one at a time; a function that is compiled asks for those that it calls"""

    def __init__(self, function: Callable[..., Any], *, for_python: bool, **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.for_python = for_python
        """whether Python calls it: the machine code is kept on the disk"""
        self._function = function
        self._options = options
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._dispatcher or self.dispatcher)(*arguments)

    @property
    def dispatcher(self) -> Any:
        """numba's own object for the function."""
        with self._making:
            if self._dispatcher is None:
                _tell_numba()
                self._dispatcher = self._kept() if self.for_python else self._inner()
        return self._dispatcher

    def _inner(self) -> Any:
        from numba import njit

        # without an entry for Python it compiles in half the time
        bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return njit(error_model="numpy", **bare, **self._options)(self._function)

    def _kept(self) -> Any:
        from numba import njit

        try:
            kept = njit(cache=True, error_model="numpy", nogil=True, **self._options)(self._function)
        except RuntimeError:  # numba's word for it: "no locator available"
            kept = njit(error_model="numpy", nogil=True, **self._options)(self._function)
        # numba looks at the function's own file alone, and what it calls is compiled into it: after an upgrade that changed
        # another file only, old machine code would go on. (Its own words for "stale" have no public way in.)
        file = getattr(getattr(kept, "_cache", None), "_cache_file", None)
        if file is not None:
            file._source_stamp = (file._source_stamp, _sources())
        return kept


@cache
def _tell_numba() -> None:
    """That a ``Compiled`` is to it what its own object would be, and that its compilations are counted."""
    from numba.core import event
    from numba.extending import typeof_impl

    @typeof_impl.register(Compiled)
    def _(value: Compiled, context: Any) -> Any:
        return typeof_impl(value.dispatcher, context)

    class Counting(event.Listener):  # type: ignore[misc]  # numba tells no types
        def on_start(self, event: event.Event) -> None:
            _compilations.add(1)

        def on_end(self, event: event.Event) -> None:
            _compilations.add(-1)

    event.register("numba:compile", Counting())


# ---- the decorators ----


def entry(function: F) -> F:
    """Decorates what Python calls. The machine code is kept on disk, beside the source or in the user's cache folder.

    Where neither can be written (a container that is read-only throughout), each process compiles for itself.
    """
    return cast(F, Compiled(function, for_python=True))


def inner(function: F) -> F:
    """Decorates what is called by compiled code alone."""
    return cast(F, Compiled(function, for_python=False))


# For code that makes no arrays: numba counts the references to arrays. Where code hands on a tuple of many, the counting takes
# ten times as long as the work.


def lean(function: F) -> F:
    """As ``inner``, without counting."""
    return cast(F, Compiled(function, for_python=False, _nrt=False))


def fused(function: F) -> F:
    """As ``lean``, for small hot functions: they become part of their callers."""
    return cast(F, Compiled(function, for_python=False, _nrt=False, forceinline=True))


def lean_entry(function: F) -> F:
    """As ``entry``, without counting."""
    return cast(F, Compiled(function, for_python=True, _nrt=False))


# ---- what there is ----


class _Compilations:
    """Counts those that have begun and not ended; reading machine code from the disk is none."""

    def __init__(self) -> None:
        self.running = 0
        self._lock = threading.Lock()

    def add(self, change: int) -> None:
        with self._lock:
            self.running += change


_compilations: Final = _Compilations()


def compiling() -> bool:
    """Whether this process makes machine code at the moment: it takes seconds, and up to a minute after an installation."""
    return _compilations.running > 0


def can_be_kept() -> bool:
    """Whether numba has a place for the machine code of this room. Imports numba."""
    return bool(getattr(getattr(probe.dispatcher, "_cache", None), "cache_path", None))


def version() -> str:
    """Changes with what the machine code depends on: our sources, numba, Python and the processor. Without numba."""
    parts = (_sources(), importlib.metadata.version("numba"), sys.version, platform.machine(), _processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Its model and what it can do, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


@cache
def _sources() -> str:
    """A digest of all files of this room that are compiled. 2 ms, once."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"analysis.numba_compile import" in source:
            digest.update(source)
    return digest.hexdigest()


def _nothing() -> int:
    return 0


probe: Final = Compiled(_nothing, for_python=True)
"""never called: numba says of it where it would be kept"""
