"""The Python stacks of a window, each once: frames, files and functions as positions in lists."""

from __future__ import annotations

from array import array
from typing import Any, Final

from vramscope.wire import UNKNOWN

MOST_FRAMES: Final = 64
"""innermost frames of a stack that are kept"""
MOST_CHARACTERS: Final = 1000

Frames = list[dict[str, Any]]


class Stacks:
    """Gives each stack its number. PyTorch makes a list for each allocation, of frames that many of them share."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.stacks: list[list[int]] = []
        self._frames: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._word_numbers: dict[str, int] = {}
        self._frame_numbers: dict[tuple[int, int, int], int] = {}
        self._stack_numbers: dict[tuple[int, ...], int] = {}
        # By identity first, which is fast; what was seen is kept, so that no identity is used again.
        self._seen_frames: dict[int, tuple[int, Any]] = {}
        self._seen_stacks: dict[int, tuple[int, Any]] = {}

    def number(self, frames: Frames | None) -> int:
        """Position of a stack; UNKNOWN where none was recorded, or no Python ran (in autograd's threads)."""
        if not frames:
            return UNKNOWN
        seen = self._seen_stacks.get(id(frames))
        if seen is None:
            key = tuple(self._frame(frame) for frame in frames[:MOST_FRAMES])
            number = self._stack_numbers.setdefault(key, len(self.stacks))
            if number == len(self.stacks):
                self.stacks.append(list(key))
            seen = self._seen_stacks[id(frames)] = (number, frames)
        return seen[0]

    @property
    def frames(self) -> dict[str, bytes]:
        """Columns of window.FRAMES."""
        return {
            name: array("q", column).tobytes()
            for name, column in zip(("file", "line", "function"), self._frames, strict=True)
        }

    def _frame(self, frame: dict[str, Any]) -> int:
        seen = self._seen_frames.get(id(frame))
        if seen is None:
            key = (self._word(frame["filename"]), int(frame["line"]), self._word(frame["name"]))
            number = self._frame_numbers.setdefault(key, len(self._frames[0]))
            if number == len(self._frames[0]):
                for column, value in zip(self._frames, key, strict=True):
                    column.append(value)
            seen = self._seen_frames[id(frame)] = (number, frame)
        return seen[0]

    def _word(self, word: str) -> int:
        word = word[:MOST_CHARACTERS]
        number = self._word_numbers.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(word)
        return number
