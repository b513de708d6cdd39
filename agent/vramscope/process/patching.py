"""Functions of ours in front of Python's and PyTorch's: they hear a call and pass it on, and are gone when their part ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vramscope.process import watched_calls
from vramscope.process.untraced import skip_frames


class Patches:
    """Those that one part of a session has put up."""

    def __init__(self) -> None:
        self._removals: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Have ``around(original, *args, **kwargs)`` called instead of an attribute of a module or class. 0.2 µs a call."""
        original = getattr(owner, name)
        hears = True

        @functools.wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs) if hears else original(*args, **kwargs)

        ours._torchdynamo_inline = original  # type: ignore[attr-defined]  # Dynamo looks through it
        skip_frames(ours.__code__, below=False)  # type: ignore[attr-defined]
        skip_frames(around.__code__, below=False)
        setattr(owner, name, ours)

        def put_back() -> None:
            nonlocal hears
            hears = False
            if getattr(owner, name) is ours:
                setattr(owner, name, original)

        self._removals.append(put_back)

    def watch(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., Any],
        after: Callable[[Any, Any], None] | None = None,
        failed: Callable[[Any], None] | None = None,
    ) -> None:
        """Have a Python function of a module or class watched, which stays the same object; see :class:`watched_calls.Watcher`."""
        self._removals.append(watched_calls.watch(owner, name, watched_calls.Watcher(before, after, failed)))

    def remove(self) -> None:
        """The originals again; where somebody has put a function in front of ours, ours only passes the call on."""
        while self._removals:
            self._removals.pop()()
