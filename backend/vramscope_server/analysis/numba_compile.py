"""Compiles the numeric code of ``analysis`` with numba, to machine code that runs without the interpreter's lock.

Importing numba takes half a second and tens of megabytes. A server that only stores and shows series does not need it. So a
decorated function is passed to numba at its first call, by Python or by another function during compilation.
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
        """Convert an argument of a compiled function. It would be compiled again for each integer type."""
else:
    int64 = np.int64


class Compiled:
    """Function that numba compiles on first use."""

    _making: Final = threading.RLock()
    """One compilation at a time. A function that is compiled requests those that it calls."""

    def __init__(self, function: Callable[..., Any], *, for_python: bool, **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.for_python = for_python
        """Whether Python calls it. Its machine code is cached on disk."""
        self._function = function
        self._options = options
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._dispatcher or self.dispatcher)(*arguments)

    @property
    def dispatcher(self) -> Any:
        """Dispatcher of the function, made by numba."""
        with self._making:
            if self._dispatcher is None:
                _register_with_numba()
                self._dispatcher = self._cached() if self.for_python else self._inner()
        return self._dispatcher

    def _inner(self) -> Any:
        from numba import njit

        # without wrappers for Python it compiles in half the time
        bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return njit(error_model="numpy", **bare, **self._options)(self._function)

    def _cached(self) -> Any:
        from numba import njit

        try:
            compiled = njit(cache=True, error_model="numpy", nogil=True, **self._options)(self._function)
        except RuntimeError:  # numba: "no locator available"
            compiled = njit(error_model="numpy", nogil=True, **self._options)(self._function)
        # numba checks only the function's own file, but called functions are compiled into it: after an upgrade that changed
        # only another file, old machine code would stay in use. (numba has no public interface for this.)
        file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
        if file is not None:
            file._source_stamp = (file._source_stamp, _sources())
            file._load_index = _tolerant(file._load_index)
        return compiled


def _tolerant(load_index: Callable[[], Any]) -> Callable[[], Any]:
    """Treat the cache of an older version as empty: its index names classes, which may no longer exist."""

    def load() -> Any:
        try:
            return load_index()
        except (AttributeError, ImportError):
            return {}

    return load


@cache
def _register_with_numba() -> None:
    """Make numba treat a ``Compiled`` as its dispatcher, and count compilations."""
    from numba.core import event
    from numba.extending import typeof_impl

    @typeof_impl.register(Compiled)
    def _(value: Compiled, context: Any) -> Any:
        return typeof_impl(value.dispatcher, context)

    class Counting(event.Listener):  # type: ignore[misc]  # numba has no types
        def on_start(self, event: event.Event) -> None:
            _compilations.add(1)

        def on_end(self, event: event.Event) -> None:
            _compilations.add(-1)

    event.register("numba:compile", Counting())


# ---- the decorators ----


def entry(function: F) -> F:
    """Decorate a function that Python calls. Its machine code is cached next to the source or in the user's cache folder.

    If neither is writable (a read-only container), each process compiles for itself.
    """
    return cast(F, Compiled(function, for_python=True))


def inner(function: F) -> F:
    """Decorate a function that only compiled code calls."""
    return cast(F, Compiled(function, for_python=False))


# For code that creates no arrays. numba counts references to arrays; passing a tuple of many arrays makes the counting take
# ten times as long as the work.


def lean(function: F) -> F:
    """Decorate as ``inner``, without reference counting."""
    return cast(F, Compiled(function, for_python=False, _nrt=False))


def fused(function: F) -> F:
    """Decorate as ``lean``, and inline the function into its callers."""
    return cast(F, Compiled(function, for_python=False, _nrt=False, forceinline=True))


def lean_entry(function: F) -> F:
    """Decorate as ``entry``, without reference counting."""
    return cast(F, Compiled(function, for_python=True, _nrt=False))


# ---- state ----


class _Compilations:
    """Number of running compilations. Loading machine code from the disk does not count."""

    def __init__(self) -> None:
        self.running = 0
        self._lock = threading.Lock()

    def add(self, change: int) -> None:
        with self._lock:
            self.running += change


_compilations: Final = _Compilations()


def compiling() -> bool:
    """Whether this process is compiling. It takes seconds, and up to a minute after an installation."""
    return _compilations.running > 0


def can_be_kept() -> bool:
    """Whether numba can cache machine code on disk. Imports numba."""
    return bool(getattr(getattr(probe.dispatcher, "_cache", None), "cache_path", None))


def version() -> str:
    """Digest of all that the machine code depends on: sources, numba, Python and the processor. Does not import numba."""
    parts = (_sources(), importlib.metadata.version("numba"), sys.version, platform.machine(), _processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Model and features of the processor, as far as known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


@cache
def _sources() -> str:
    """Digest of all compiled source files. 2 ms, once."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"analysis.numba_compile import" in source:
            digest.update(source)
    return digest.hexdigest()


def _nothing() -> int:
    return 0


probe: Final = Compiled(_nothing, for_python=True)
"""Never called. It shows where numba would cache machine code."""
