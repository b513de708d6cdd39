"""Adds the text of their source lines to findings. Runs on the sender thread, because it reads files."""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from vramscope.protocol import messages

MOST_CHARACTERS: Final = 300
_STARTED: Final = time.time()
"""A file that was changed later may have another text in that line than the code that runs."""


def with_source(item: messages.BatchItem, hide: Callable[[str], str]) -> messages.BatchItem:
    """The message with the source lines of its findings. Messages without findings stay as they are.

    hide   removes secrets from a text
    """
    if not isinstance(item, messages.Scan) or not item.leaks:
        return item
    return msgspec.structs.replace(item, leaks=[_with_line(leak, hide) for leak in item.leaks])


def _with_line(leak: messages.Leak, hide: Callable[[str], str]) -> messages.Leak:
    if leak.file is None or leak.line is None:
        return leak
    try:
        file = Path(leak.file)
        if file.exists() and file.stat().st_mtime > _STARTED:
            return leak
        text = linecache.getline(leak.file, leak.line).rstrip()
    except (OSError, ValueError):  # ValueError: a name with a NUL
        return leak
    if not text or len(text) > MOST_CHARACTERS:
        return leak
    return msgspec.structs.replace(leak, source=hide(text))
