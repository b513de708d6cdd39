"""Watches the calls of a Python function without replacing it.

The function's code object is exchanged for one with the same statements plus calls of the watchers at its begin and end.
The function stays the same object: code that imported it earlier is watched too, and pickling, inspection and comparison do
not change. A traceback shows the same lines and no frame of the agent. Dynamo, which knows PyTorch's functions by identity,
sees the original statements only.

Where that is not possible (no source text, say), a wrapper replaces the function.

"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from vramscope.process.hide_from_dynamo import skip_frames
from vramscope.process.watched_code import MARK, watched_code


class Watcher(NamedTuple):
    """Callbacks at the begin and the end of each call. None of them may raise.

    before   gets the call's arguments, named ones by position; its result is the token of the call
    after    gets the token and the result
    failed   gets the token; ``sys.exc_info()`` has the error

    """

    before: Callable[..., Any]
    after: Callable[[Any, Any], None] | None = None
    failed: Callable[[Any], None] | None = None


class Calls:
    """All watchers of one function, as its code sees them. Hashable by identity, since it is a constant of that code."""

    __slots__ = ("after", "before", "failed", "paused", "restore", "wanted", "watchers")

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self.paused: list[Watcher] = []
        """Watchers that are paused."""
        self.wanted: Any = ()
        """Container of ids of first arguments, for a function that is watched for some of them only."""
        self.restore: Callable[[], None] = lambda: None
        self.changed()

    def changed(self) -> None:
        """Update the callbacks after a change of the list of watchers."""
        watchers = tuple(one for one in self.watchers if one not in self.paused)
        if not watchers:
            self.before = self.after = self.failed = _nothing
        elif len(watchers) == 1:
            one = watchers[0]
            self.before, self.after, self.failed = one.before, one.after or _nothing, one.failed or _nothing
        else:
            self.before, self.after, self.failed = _combined(watchers)


def _nothing(*_: Any) -> None:
    return None


def _combined(watchers: tuple[Watcher, ...]) -> tuple[Callable[..., Any], Callable[..., None], Callable[..., None]]:
    def before(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple([watcher.before(*args, **kwargs) for watcher in watchers])

    def after(tokens: tuple[Any, ...] | None, result: Any) -> None:
        for watcher, token in zip(watchers, tokens or (), strict=False):
            if watcher.after is not None:
                watcher.after(token, result)

    def failed(tokens: tuple[Any, ...] | None) -> None:
        for watcher, token in zip(watchers, tokens or (), strict=False):
            if watcher.failed is not None:
                watcher.failed(token)

    return before, after, failed


_watched: dict[tuple[int, str], Calls] = {}
"""Calls by the id of the owner (a class or module that lives as long as the process) and the function's name."""


class Watch(NamedTuple):
    """Control of one watcher."""

    end: Callable[[], None]
    """Ends it. The end of a function's last watcher restores the function."""
    pause: Callable[[], None]
    """The watcher is not called until ``resume``; the function's code stays as it is. A call in which this changes may
    reach ``after`` or ``failed`` with None as its token."""
    resume: Callable[[], None]


def watch(owner: Any, name: str, watcher: Watcher) -> Watch:
    """Call a watcher with each call of ``owner.name``."""
    key = id(owner), name
    calls = _watched.get(key)
    if calls is None:
        calls = _watched[key] = Calls()
        calls.watchers.append(watcher)
        calls.changed()
        install(owner, name, calls)
    else:
        calls.watchers.append(watcher)
        calls.changed()

    def end() -> None:
        if watcher not in calls.watchers:
            return
        resume()
        calls.watchers.remove(watcher)
        calls.changed()
        if not calls.watchers and _watched.get(key) is calls:
            del _watched[key]
            calls.restore()

    def pause() -> None:
        if watcher not in calls.paused:
            calls.paused.append(watcher)
            calls.changed()

    def resume() -> None:
        if watcher in calls.paused:
            calls.paused.remove(watcher)
            calls.changed()

    return Watch(end, pause, resume)


def is_watched(function: Any) -> bool:
    """Return whether a function's code contains calls of watchers."""
    return any(isinstance(constant, Calls) for constant in function.__code__.co_consts)


def install(owner: Any, name: str, calls: Calls, *, for_wanted: bool = False) -> None:
    """Call ``calls`` from the function until ``calls.restore()``.

    for_wanted   only if the id of the first argument is in ``calls.wanted``

    """
    function = inspect.getattr_static(owner, name)
    if not isinstance(function, FunctionType):
        _wrap(owner, name, calls, for_wanted)
        return
    plain = function.__code__
    if plain not in _made:  # compiling takes some ms, and a function may be watched repeatedly
        _made[plain] = watched_code(function, for_wanted=for_wanted)
    made = _made[plain]
    if made is None:
        _wrap(owner, name, calls, for_wanted)
        return
    watched = made.replace(co_consts=tuple(calls if constant == MARK else constant for constant in made.co_consts))
    function.__code__ = watched

    def restore() -> None:
        if function.__code__ is watched:
            function.__code__ = plain

    calls.restore = restore


_made: dict[CodeType, CodeType | None] = {}
"""Results of :func:`watched_code` by the original code."""


def _wrap(owner: Any, name: str, calls: Calls, for_wanted: bool) -> None:
    """Replace the function by a wrapper that Dynamo looks through."""
    original = getattr(owner, name)
    watches = True

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not watches or (for_wanted and id(args[0]) not in calls.wanted):
            return original(*args, **kwargs)
        token = calls.before(*args, **kwargs)
        ends = False
        try:
            result = original(*args, **kwargs)
            ends = True
        finally:
            if not ends:
                calls.failed(token)
        calls.after(token, result)
        return result

    watched._torchdynamo_inline = original  # type: ignore[attr-defined]
    skip_frames(watched.__code__, below=False)  # type: ignore[attr-defined]
    setattr(owner, name, watched)

    def restore() -> None:
        nonlocal watches
        watches = False
        if getattr(owner, name) is watched:
            setattr(owner, name, original)

    calls.restore = restore
