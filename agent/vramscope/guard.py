"""Fault containment: an error of the agent never reaches the training. It is counted, and reported once.

This is the only file of the agent with ``except Exception``. Everything that the program calls (attach, hooks, thread
bodies, fork and exit handlers) is wrapped at its outermost edge. Inside, code is written plainly, without try.

    @guarded("step hook")
    def on_step() -> None: ...

    with guarded("attach"):
        ...

KeyboardInterrupt and SystemExit pass, because they are the user's. So does an exception of the user's signal handler that
runs inside the agent's code (a time limit by SIGALRM, the end of a job by SIGUSR1). After :data:`FAULTS_UNTIL_OFF` faults a
part is switched off: a decorated function then returns its default at once.

"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import traceback
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType, TracebackType
from typing import Final, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")

FAULTS_UNTIL_OFF: Final = 10
"""Number of faults after which a part is switched off. One may be bad luck; ten are a defect that only costs time."""

TRACEBACK_FRAMES: Final = 8
MESSAGE_CHARACTERS: Final = 200

log = logging.getLogger("vramscope")


class GuardedPart:
    """A guarded part of the agent: its number of faults, and whether it is switched off."""

    __slots__ = ("faults", "off", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.faults = 0
        self.off = False


class Guard:
    """Counts contained faults. One for the process: :data:`guard`.

    Counters are plain ints without a lock: a lock could be held across a fork, and a lost count does no harm.

    """

    def __init__(self) -> None:
        self.raise_faults = False
        """True in the agent's own tests: faults are raised. Never read from the environment."""
        self.faults = 0
        self._parts: dict[str, GuardedPart] = {}
        self._reported: set[tuple[str, str]] = set()

    def part(self, what: str) -> GuardedPart:
        """Return the part of that name; the same object each time."""
        return self._parts.setdefault(what, GuardedPart(what))

    def faults_by_part(self) -> dict[str, int]:
        """Return the number of faults of each part; parts without a fault are left out."""
        return {part.what: part.faults for part in list(self._parts.values()) if part.faults}

    def reset(self) -> None:
        """Forget all faults and switch every part on again. For tests, and for a new attach."""
        self.faults = 0
        self._reported.clear()
        for part in list(self._parts.values()):
            part.faults = 0
            part.off = False

    def contain(self, part: GuardedPart, fault: Exception) -> bool:
        """Count and report a fault. Returns True if the caller must raise it again (a signal handler's, and in the agent's
        tests).

        The exception is not kept: its frames retain local variables, and these may be the user's tensors.

        """
        if self.raise_faults:
            return True
        with contextlib.suppress(Exception):  # the user's log handler may raise anything
            if _is_from_signal_handler(fault):
                return True
        self.faults += 1
        part.faults += 1
        # The user's logging handlers run here; their errors must not reach the training either.
        with contextlib.suppress(Exception):
            self._report(part, fault)
        return False

    def _report(self, part: GuardedPart, fault: Exception) -> None:
        kind = (type(fault).__name__, part.what)
        if kind not in self._reported:
            self._reported.add(kind)
            log.warning(
                "vramscope: %s failed inside (%s: %s). Your training continues; further errors of this kind are only counted.",
                part.what,
                kind[0],
                first_line(fault),
            )
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s", "".join(traceback.format_exception(fault, limit=-TRACEBACK_FRAMES)))
        if part.faults >= FAULTS_UNTIL_OFF and not part.off:
            part.off = True
            log.warning("vramscope: %s failed %d times and is now switched off.", part.what, part.faults)


def _is_from_signal_handler(fault: Exception) -> bool:
    """Return whether a signal handler of the user raised it. Python calls one between any two instructions."""
    codes = filter(None, (_code(signal.getsignal(number)) for number in signal.valid_signals()))
    # a guarded function may be a handler too: its wrapper is in every fault's traceback
    handlers = {code for code in codes if code.co_filename != __file__}
    return bool(handlers) and any(frame.f_code in handlers for frame, _ in traceback.walk_tb(fault.__traceback__))


def _code(handler: object) -> CodeType | None:
    """Return the code of a function, a method, or a callable object."""
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - for its code
    function = handler if isinstance(handler, FunctionType | MethodType) else call
    found = getattr(function, "__code__", None)
    return found if isinstance(found, CodeType) else None


def first_line(fault: BaseException) -> str:
    """Return the first line of an exception's text, cut after a word to a length that fits a log line."""
    line, *_ = str(fault).strip().splitlines() or ["no message"]
    if len(line) <= MESSAGE_CHARACTERS:
        return line
    cut = line[: MESSAGE_CHARACTERS - 1]
    word = cut.rfind(" ")
    return f"{cut[:word] if word > MESSAGE_CHARACTERS * 3 // 4 else cut}…"


guard: Final = Guard()


class guarded(Generic[D]):  # noqa: N801 - used as a decorator and as a with-block, which are lower case
    """Contain every ``Exception`` of a function or a with-block, and return ``default`` (None) instead.

    ``what`` is shown to the user ("the step hook failed inside ..."). The decorator adds one try, one attribute and one
    call (about 0.1 µs); use it on hot hooks, and the with-block elsewhere. A with-block of a part that is switched off
    still runs: Python cannot skip one.

    """

    __slots__ = ("_part", "default", "what")

    @overload
    def __init__(self: guarded[None], what: str) -> None: ...
    @overload
    def __init__(self, what: str, default: D) -> None: ...
    def __init__(self, what: str, default: D | None = None) -> None:
        self.what = what
        self.default = default
        self._part = guard.part(what)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | D]:
        part = self._part
        default: D = self.default  # type: ignore[assignment]  # the overloads: None only where D is None

        @functools.wraps(function)
        def safe(*args: P.args, **kwargs: P.kwargs) -> R | D:
            if part.off:
                return default
            try:
                return function(*args, **kwargs)
            except Exception as fault:  # the only broad except: nothing may reach the training
                if guard.contain(part, fault):
                    raise
                return default

        return safe

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, frames: TracebackType | None
    ) -> bool:
        return isinstance(fault, Exception) and not guard.contain(self._part, fault)


def _after_fork_in_child() -> None:
    # The child reports its own faults.
    guard.reset()


os.register_at_fork(after_in_child=_after_fork_in_child)
