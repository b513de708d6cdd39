"""Forward stacks as text: with anomaly detection PyTorch records them for the allocations of backward."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from vramscope_server.analysis.trace.stacks import Stacks
from vramscope_server.analysis.trace.types import Ids

_FRAME: Final = re.compile(r'^\s*File "(.*)", line (\d{1,9}), in (\S+)')
"""A line of the standard library's traceback, followed by the source line."""


def with_texts(
    stacks: Stacks, frames: dict[str, Ids], words: list[str], texts: Iterable[list[str]]
) -> tuple[Stacks, dict[str, Ids], list[int]]:
    """Stacks and frames with those of the texts (outermost line first) appended, and the position of each text's stack.

    New words are added to ``words``. The position is -1 if a text has no frame.
    """
    texts = list(texts)
    if not texts:
        return stacks, frames, []
    word_at = {word: at for at, word in enumerate(words)}
    rows: dict[tuple[int, int, int], int] = {}
    known: dict[tuple[int, ...], int] = {}
    flat: list[int] = []
    offsets: list[int] = []
    positions: list[int] = []
    begin = len(frames["line"])
    for text in texts:
        stack = []
        for line in reversed(text):
            if frame := _FRAME.match(line):
                file, function = (word_at.setdefault(word, len(word_at)) for word in (frame[1], frame[3]))
                stack.append(begin + rows.setdefault((file, int(frame[2]), function), len(rows)))
        if stack and tuple(stack) not in known:
            known[tuple(stack)] = len(stacks) + len(known)
            flat += stack
            offsets.append(len(stacks.flat) + len(flat))
        positions.append(known.get(tuple(stack), -1))
    words[:] = word_at
    added = np.array(list(rows), np.int32).reshape(-1, 3)
    more = {name: np.append(frames[name], added[:, at]) for at, name in enumerate(("file", "line", "function"))}
    joined = Stacks(np.append(stacks.flat, flat).astype(np.int32), np.append(stacks.offsets, offsets).astype(np.int64))
    return joined, more, positions
