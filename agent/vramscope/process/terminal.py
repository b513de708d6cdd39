"""What the agent says to the person at the terminal: one line on stderr, once for each kind of news.

``VRAMSCOPE_QUIET=1`` silences it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

PREFIX: Final = "vramscope: "

_said: dict[tuple[int, str], object] = {}


def say(text: str) -> None:
    """Write ``vramscope: text`` to stderr as one line. Never raises, also when stderr is closed or gone."""
    if os.environ.get("VRAMSCOPE_QUIET", "").strip().lower() in ("1", "true", "yes", "on"):
        return
    line = PREFIX + " ".join(text.splitlines()) + "\n"
    # None: no console at all. ValueError: closed. OSError: a broken pipe, a full disk. The rest: somebody put an object
    # of their own in its place. One write for the whole line, so that threads do not mix theirs.
    with contextlib.suppress(AttributeError, ValueError, OSError, TypeError, RuntimeError):
        sys.stderr.write(line)
        sys.stderr.flush()


def say_once(key: str, text: str, *, every_rank: bool = False) -> None:
    """Say it, unless this process said ``key`` before. Safe from any thread, without a lock.

    On a host with several ranks only the first one speaks; ``every_rank`` is for news that concerns this rank alone.
    """
    if not (every_rank or speaks_for_host()):
        return
    me = object()
    # dict.setdefault is atomic: of two threads in the same instant exactly one finds its own object in there. The pid
    # is part of the key, because a forked child has its own news.
    if _said.setdefault((os.getpid(), key), me) is me:
        say(text)


def speaks_for_host() -> bool:
    """False in all but the first of a host's ranks (torchrun sets LOCAL_RANK): eight times the same news is noise."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def forget_said() -> None:
    """Say everything anew: for a new attach in the same process, and for tests."""
    _said.clear()
