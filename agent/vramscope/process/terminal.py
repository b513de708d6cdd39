"""Messages of the agent on the terminal: one line on stderr, once for each kind of message.

``VRAMSCOPE_QUIET=1`` silences it.

"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

PREFIX: Final = "vramscope: "
ANNOUNCED: Final = "VRAMSCOPE_ANNOUNCED"
"""Environment variable: id of the run whose address ``vramscope run`` has printed. The agent does not repeat it."""

_printed: dict[tuple[int, str], object] = {}


def say(text: str) -> None:
    """Write ``vramscope: text`` to stderr as one line. Never raises, also when stderr is closed or gone."""
    if os.environ.get("VRAMSCOPE_QUIET", "").strip().lower() in ("1", "true", "yes", "on"):
        return
    # Names of other processes come from other users: their control characters must not reach the terminal.
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.splitlines()))
    line = f"{PREFIX}{shown}\n"
    # None: no console. ValueError: closed. OSError: a broken pipe, a full disk. The rest: the program replaced stderr.
    # One write for the whole line, so that the lines of threads do not mix.
    with contextlib.suppress(AttributeError, ValueError, OSError, TypeError, RuntimeError):
        sys.stderr.write(line)
        sys.stderr.flush()


def say_once(key: str, text: str, *, every_rank: bool = False) -> None:
    """Print a message unless this process printed ``key`` before. Safe from any thread, without a lock.

    On a host with several ranks only the first one prints; ``every_rank`` is for messages about this rank alone.

    """
    if not (every_rank or speaks_for_host()):
        return
    own_entry = object()
    # dict.setdefault is atomic: of two threads exactly one finds its own object. The pid is part of the key, because a
    # forked child prints its own messages.
    if _printed.setdefault((os.getpid(), key), own_entry) is own_entry:
        say(text)


def address(run_id: str, url: str) -> str:
    """Return ``: URL`` for the end of a line, or nothing if ``vramscope run`` has printed the address of this run."""
    return "" if os.environ.get(ANNOUNCED) == run_id else f": {url}"


def speaks_for_host() -> bool:
    """Return False in all but the first of a host's ranks (torchrun sets LOCAL_RANK), so that a message is not repeated."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def forget_printed() -> None:
    """Forget all printed messages: for a new attach in the same process, and for tests."""
    _printed.clear()
