"""The one door between the training and us: a fault of ours is contained here, counted, and told once.

The only file of the agent with ``except Exception``. Everything that the host calls (attach, hooks, thread bodies, fork
and exit handlers) is wrapped at its outermost edge; inside, code is written plainly, without try.

    @guarded("step hook")
    def on_step() -> None: ...

    with guarded("attach"):
        ...

KeyboardInterrupt and SystemExit pass: they are the user's, and so is what a signal's handler of the user's raises while our code
runs (a time limit by SIGALRM, the end of a job by SIGUSR1). After :data:`FAULTS_UNTIL_OFF` faults at one place, that
place is switched off: a decorated function then gives back its default at once.
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
"""One fault may be bad luck; ten at one place are a defect that would only cost the training time."""

TRACEBACK_FRAMES: Final = 8
MESSAGE_CHARACTERS: Final = 200

log = logging.getLogger("vramscope")


class GuardedPart:
    """One guarded spot in the code: how often it failed, and whether it is still in use."""

    __slots__ = ("faults", "off", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.faults = 0
        self.off = False


class Guard:
    """Counts what was contained. One for the process: :data:`guard`.

    Counters are plain ints without a lock: a lock could be held across a fork, and a lost count harms nobody.
    """

    def __init__(self) -> None:
        self.raise_faults = False
        """Set by our own tests, so that a fault is loud at home. Never read from the environment."""
        self.faults = 0
        self._places: dict[str, GuardedPart] = {}
        self._told: set[tuple[str, str]] = set()

    def place(self, what: str) -> GuardedPart:
        """The place of that name; the same object each time."""
        return self._places.setdefault(what, GuardedPart(what))

    def faults_by_place(self) -> dict[str, int]:
        """How often each place failed; places without a fault are left out."""
        return {place.what: place.faults for place in list(self._places.values()) if place.faults}

    def reset(self) -> None:
        """Forget all faults and switch every place on again. For tests, and for a new attach."""
        self.faults = 0
        self._told.clear()
        for place in list(self._places.values()):
            place.faults = 0
            place.off = False

    def contain(self, place: GuardedPart, fault: Exception) -> bool:
        """Count and tell a fault. True: the caller must raise it again (a signal's, and in our own tests).

        The exception is not kept: its frames hold local variables, and these may hold the user's tensors.
        """
        if self.raise_faults:
            return True
        with contextlib.suppress(Exception):  # (a handler may be an object of any kind)
            if _of_a_signal(fault):
                return True
        self.faults += 1
        place.faults += 1
        # The user's logging handlers run in here; what they raise must not reach the training either.
        with contextlib.suppress(Exception):
            self._tell(place, fault)
        return False

    def _tell(self, place: GuardedPart, fault: Exception) -> None:
        kind = (type(fault).__name__, place.what)
        if kind not in self._told:
            self._told.add(kind)
            log.warning(
                "vramscope: %s failed inside (%s: %s). Your training goes on; this kind is now only counted.",
                place.what,
                kind[0],
                first_line(fault),
            )
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s", "".join(traceback.format_exception(fault, limit=-TRACEBACK_FRAMES)))
        if place.faults >= FAULTS_UNTIL_OFF and not place.off:
            place.off = True
            log.warning("vramscope: %s failed %d times and is now switched off.", place.what, place.faults)


def _of_a_signal(fault: Exception) -> bool:
    """Whether a handler of the user's raised it, which Python calls between any two instructions, ours included."""
    codes = filter(None, (_code(signal.getsignal(number)) for number in signal.valid_signals()))
    # (a guarded function may be a handler, too: its wrapper is in every fault's traceback)
    handlers = {code for code in codes if code.co_filename != __file__}
    return bool(handlers) and any(frame.f_code in handlers for frame, _ in traceback.walk_tb(fault.__traceback__))


def _code(handler: object) -> CodeType | None:
    """Of a function, a method, or an object that is called like one."""
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is wanted
    function = handler if isinstance(handler, FunctionType | MethodType) else call
    found = getattr(function, "__code__", None)
    return found if isinstance(found, CodeType) else None


def first_line(fault: BaseException) -> str:
    """The first line of what an exception says, cut behind a word to a length that fits a log line."""
    line, *_ = str(fault).strip().splitlines() or ["no message"]
    if len(line) <= MESSAGE_CHARACTERS:
        return line
    cut = line[: MESSAGE_CHARACTERS - 1]
    word = cut.rfind(" ")
    return f"{cut[:word] if word > MESSAGE_CHARACTERS * 3 // 4 else cut}…"


guard: Final = Guard()


class guarded(Generic[D]):  # noqa: N801 - used as a decorator and as a with-block, where lower case is the custom
    """Contain every ``Exception`` of a function or a with-block, and give ``default`` (None) instead.

    ``what`` is said to the user ("the step hook failed inside ..."), so word it for them. The decorator adds one
    try, one attribute and one call (about 0.1 µs); use it on hot hooks, and the with-block elsewhere. A with-block at
    a place that was switched off still runs: Python gives no way to skip one.
    """

    __slots__ = ("_place", "default", "what")

    @overload
    def __init__(self: guarded[None], what: str) -> None: ...
    @overload
    def __init__(self, what: str, default: D) -> None: ...
    def __init__(self, what: str, default: D | None = None) -> None:
        self.what = what
        self.default = default
        self._place = guard.place(what)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | D]:
        place = self._place
        default: D = self.default  # type: ignore[assignment]  # the overloads: None only where D is None

        @functools.wraps(function)
        def safe(*args: P.args, **kwargs: P.kwargs) -> R | D:
            if place.off:
                return default
            try:
                return function(*args, **kwargs)
            except Exception as fault:  # the one place: the training is sacred
                if guard.contain(place, fault):
                    raise
                return default

        return safe

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, frames: TracebackType | None
    ) -> bool:
        return isinstance(fault, Exception) and not guard.contain(self._place, fault)


def _after_fork_in_child() -> None:
    # The child has its own story to tell: what the parent said was on the parent's behalf.
    guard.reset()


os.register_at_fork(after_in_child=_after_fork_in_child)
